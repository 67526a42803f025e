"""Options shared by all tests."""

import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell. What tests start would inherit it, and never see a Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden texts, for review as code")
