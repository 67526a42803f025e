"""Features of processors, and the check for them."""


import pytest
from aotdiff.codegen import CodegenError
from aotdiff.codegen.processor import processor_check, required_features

AVX2 = ["popcnt", "movbe", "avx", "fma", "avx2", "bmi1", "bmi2"]
AVX512 = [*AVX2, "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"]
LINUX, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"

# What the makers' manuals say.
KNOWN = [
    (LINUX, "x86-64", []),
    (LINUX, "x86-64-v2", ["popcnt"]),
    (LINUX, "sandybridge", ["popcnt", "avx"]),
    (LINUX, "haswell", AVX2),
    (LINUX, "skylake-avx512", AVX512),
    (LINUX, "znver4", [*AVX512, "avx512vbmi", "avx512_vpopcntdq"]),
    (ARM, "cortex-a72", []),
    (ARM, "neoverse-n1", ["atomics", "lrcpc"]),
    (ARM, "neoverse-v1", ["atomics", "fcma", "lrcpc", "sve"]),
    (ARM, "neoverse-v2", ["atomics", "fcma", "lrcpc", "sve", "sve2"]),
    ("arm64-apple-macosx11", "apple-m1", []),  # every such machine has it
]


@pytest.mark.parametrize(("triple", "cpu", "features"), KNOWN, ids=[cpu for _, cpu, _ in KNOWN])
def test_features_of_named_processors(triple, cpu, features):
    assert required_features(cpu, triple) == features


def test_code_for_any_processor_needs_nothing():
    for cpu, triple in (("generic", None), ("generic", ARM), ("native", ARM)):
        assert required_features(cpu, triple) == []
    assert processor_check(LINUX, []) == "" and processor_check("wasm32-unknown-unknown", ["avx"]) == ""


@pytest.mark.parametrize(("cpu", "words"), [("haswel", "did you mean haswell"), ("nonsense", "native, generic")])
def test_unknown_processors(cpu, words):
    with pytest.raises(CodegenError, match=words):
        required_features(cpu, LINUX)


def test_processors_without_64_bits():
    with pytest.raises(CodegenError, match="no processor 'i386'"):
        required_features("i386", LINUX)
