"""Names of `.grad` functions as C spells them."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Iterable

_C_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while alignas alignof
bool constexpr false nullptr static_assert thread_local true typeof typeof_unqual asm fortran and and_eq bitand bitor
catch class compl concept const_cast consteval constinit co_await co_return co_yield decltype delete dynamic_cast
explicit export friend mutable namespace new noexcept not not_eq operator or or_eq private protected public
reinterpret_cast requires static_cast template this throw try typeid typename using virtual wchar_t xor xor_eq
char8_t char16_t char32_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t
intmax_t uintmax_t size_t ssize_t ptrdiff_t main errno stdin stdout stderr environ linux unix
""".split()  # noqa: SIM905

_MATH = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs fdim floor fma
fmax fmaximum fmin fminimum fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround
modf nan nearbyint nextafter nexttoward pow remainder remquo rint round roundeven scalbln scalbn sin sincos sinh sqrt
tan tanh tgamma trunc j0 j1 jn y0 y1 yn lgamma_r gamma drem significand scalb finite pow10 canonicalize
""".split()  # noqa: SIM905

_C_FUNCTIONS = """
abort abs access alarm aligned_alloc asctime atexit atof atoi atol atoll basename bcmp bcopy bind brk bsearch bzero
calloc chdir chmod chown clearerr clock clone close closedir connect cos creat crypt ctime daemon difftime dirname div
dprintf dup dup2 ecvt encrypt endpwent err errx exit fchmod fclose fcntl fcvt fdopen feof ferror fflush ffs fgetc
fgetpos fgets fileno flock fopen fork fprintf fputc fputs fread free freopen fscanf fseek fsetpos fstat fsync
ftell ftime dladdr dlclose dlerror dlopen dlsym getauxval madvise
ftruncate ftw fwrite gcvt getc getchar getcwd getenv getline getopt getpid getppid gets gettimeofday getuid glob gmtime
htonl htons index initstate insque ioctl isalnum isalpha isascii isatty isblank iscntrl isdigit isfinite isgraph isinf
islower isnan isnormal isprint ispunct isspace isupper isxdigit kill labs lchown ldiv lfind link listen llabs lldiv
localeconv localtime lockf login longjmp lsearch lseek lstat malloc mblen mbstowcs mbtowc memccpy memchr memcmp memcpy
memfrob memmem memmove mempcpy memset mkdir mkfifo mknod mkstemp mktime mlock mmap mount mprotect mrand48 msync munlock
munmap nanosleep nice ntohl ntohs open opendir openlog pause pclose perror pipe poll popen pread printf pselect psignal
putc putchar putenv puts pwrite qsort quick_exit raise rand rand_r random read readdir readlink readv realloc
realpath reboot recv regcomp regexec remove remque rename rewind rindex rmdir sbrk scanf seed48 select send setbuf
setenv setjmp setlocale setpgid setsid setstate setuid setvbuf shutdown sigaction signal signbit sigpause sleep
snprintf socket splice sprintf srand srandom sscanf stat step stpcpy strcasecmp strcat strchr strcmp strcoll strcpy
strcspn strdup strerror strfry strftime strlen strncat strncmp strncpy strnlen strpbrk strptime strsep strspn strstr
strtod strtof strtok strtol strtold strtoll strtoul strtoull strxfrm swab symlink sync syscall sysconf sysinfo syslog
system tcdrain tee tempnam time timegm times tmpfile tmpnam toascii tolower toupper truncate tsearch ttyname tzset
umask umount uname ungetc unlink unsetenv usleep utime utimes vfork vprintf wait waitpid warn warnx wcscpy wcslen write
""".split()  # noqa: SIM905

_RESERVED = frozenset([
    *keyword.kwlist, *keyword.softkwlist, *_C_WORDS, *_C_FUNCTIONS,
    *(name + suffix for name in _MATH for suffix in ("", "f", "l")),
]) - {"match", "case", "type", "_"} | {"case"}  # fmt: skip


_PREFIXES = ("aotdiff_", "pthread_", "PyInit_", "_ZGV")  # ours, the system's, Python's, of vector functions


def ascii_spelling(name: str) -> str:
    """An identifier in ASCII: accents go, Greek letters are written out, the rest by its number."""
    return "".join(_spelt(c) for c in unicodedata.normalize("NFKC", name))


def _spelt(c: str) -> str:
    if c.isascii():
        return c
    plain = "".join(d for d in unicodedata.normalize("NFKD", c) if d.isascii())
    if plain and plain.isidentifier():
        return plain
    words = unicodedata.name(c, "").split()
    if "LETTER" in words and words[0] in ("GREEK", "CYRILLIC"):
        spelt = words[words.index("LETTER") + 1].lower()
        return spelt.capitalize() if "CAPITAL" in words else spelt
    return "ss" if c == "ß" else f"u{ord(c):04x}"


def c_name(name: str) -> str:
    """A function's or parameter's name in C and Python: ASCII, with `_` behind words that are taken there."""
    spelt = ascii_spelling(name)
    return spelt + "_" if spelt in _RESERVED or spelt.startswith(_PREFIXES) else spelt


def unique_names(names: Iterable[str]) -> list[str]:
    """C names, made different where spelling made them equal."""
    taken: set[str] = set()
    found = []
    for name in map(c_name, names):
        fresh, k = name, 1
        while fresh in taken:
            k += 1
            fresh = f"{name}_{k}"
        taken.add(fresh)
        found.append(fresh)
    return found
