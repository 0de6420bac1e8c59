"""The programs of the folder `clients`, built as their READMEs say, with packages that are unpacked, not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.servers.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "clients"
BUILD_SECONDS = 500
MAKE = ("make",)
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # programs that run for seconds: half of the processors' time
Variables = dict[str, str]


@dataclass(frozen=True)
class Language:
    """A folder of `clients`.

    source: file of the program
    command: what runs it, in its folder
    build: commands that build it, in their order
    rebuild: commands for another source beside stubs that are built; `build` if empty
    """

    source: str
    command: tuple[str, ...]
    build: tuple[tuple[str, ...], ...] = ()
    rebuild: tuple[tuple[str, ...], ...] = ()


LANGUAGES = {
    "node": Language("speak.js", ("node", "speak.js")),
    "typescript": Language("speak.ts", ("node", "out/speak.js"), (("npm", "run", "build"),)),
    "go": Language("speak.go", ("./speak",), (MAKE, ("go", "build", "-o", "speak"))),
    "java": Language(
        "Speak.java",
        ("java", "@classpath", "Speak"),
        (MAKE,),
        (("javac", "-nowarn", "-d", "out", "@classpath", "Speak.java"),),
    ),
    "ruby": Language("speak.rb", ("ruby", "speak.rb"), (MAKE,)),
    "cpp": Language("speak.cc", ("./speak",), (MAKE,)),
    "grpclib": Language("speak.py", ("python", "speak.py"), (MAKE,)),
    "grpcurl": Language("speak.sh", ("./speak.sh",)),
    "buf": Language("speak.sh", ("./speak.sh",)),
}


def copy_sources(folder: Path) -> None:
    """Copy the folders `clients` and `protos` to a folder, as a user does."""
    built = shutil.ignore_patterns("node_modules", "gen", "out", "voxcpm_grpc", "python", "speak", "*.o")
    shutil.copytree(SOURCES, folder / "clients", ignore=built)
    shutil.copytree(ROOT / "protos", folder / "protos")


class Program:
    """A program in a copy of the folder `clients`, built.

    name: key of LANGUAGES
    folder: of the program; the links that tools need are made beside it
    build: commands in place of those of LANGUAGES
    """

    def __init__(self, name: str, folder: Path, build: tuple[tuple[str, ...], ...] = ()) -> None:
        self.name, self.folder, self._language = name, folder, LANGUAGES[name]
        own = {key: value for key, value in os.environ.items() if not key.startswith(("VOXCPM_", "PYTHON"))}
        variables = PREPARATIONS[name](folder) if name in PREPARATIONS else {}
        self.environment, self._place = own | variables, variables.get("PWD", folder)
        for command in build or self._language.build:
            self.tool(*command)

    def with_source(self, source: Path, suffix: str) -> Program:
        """A copy of this program, with this suffix to the name of its folder, and with another source."""
        folder = self.folder.with_name(f"{self.name}-{suffix}")
        shutil.copytree(self.folder, folder, symlinks=True)
        shutil.copyfile(source, folder / self._language.source)
        return Program(self.name, folder, self._language.rebuild)

    def tool(self, *command: str | Path) -> str:
        """The output of a command in the folder of the program, with what it needs to build the program."""
        done = subprocess.run(
            command, cwd=self._place, env=self.environment, capture_output=True, text=True, timeout=BUILD_SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *arguments: str, out: Path, **variables: str) -> subprocess.Popen[bytes]:
        with out.open("wb") as output:
            return subprocess.Popen(
                (*self._language.command, *arguments),
                cwd=self._place,
                env=self.environment | variables,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
            )

    def run(self, *arguments: str, out: Path, text: str = "", **variables: str) -> tuple[int, str]:
        """The exit status, and what the program wrote to stderr. Its stdin is the text and a line break."""
        with self.start(*arguments, out=out, **variables) as process:
            _, said = process.communicate(f"{text}\n".encode(), timeout=HANG_SECONDS)
        return process.returncode, said.decode()


def debian() -> Path:
    """The folder of the suite's unpacked packages. Those that the host has are not among them."""
    return Path(os.environ["SYSTEM_TEST_DEBIAN"])


def unpacked(*patterns: str) -> str:
    """The unpacked folders of these patterns, as the value of a variable."""
    return os.pathsep.join(str(path) for pattern in patterns for path in sorted(debian().glob(pattern)))


def cpp(folder: Path) -> Variables:
    """The linker finds what unpacked libraries need only if it is told to look."""
    found = {"PKG_CONFIG_SYSROOT_DIR": str(debian()), "PKG_CONFIG_PATH": unpacked("usr/lib/*/pkgconfig")}
    return found | {"CXXFLAGS": "-O0 -w", "LDFLAGS": "-Wl,--copy-dt-needed-entries"}


def go(folder: Path) -> Variables:
    """Debian's packages are for GOPATH, where the place of a folder is its import path.

    Other flags than the usual ones would compile the standard library, which Debian's compiler brings compiled.
    """
    place = folder.with_name(f"{folder.name}.path") / "src/example.com/speak"
    place.parent.mkdir(parents=True)
    place.symlink_to(folder)
    path = os.pathsep.join([str(place.parents[2]), str(debian() / "usr/share/gocode"), "/usr/share/gocode"])
    cache = Path(os.environ["VIRTUAL_ENV"]) / "go-cache"
    return {"GO111MODULE": "off", "GOPATH": path, "PWD": str(place), "GOCACHE": str(cache)}


def java(folder: Path) -> Variables:
    """One folder of all archives, because the host may have some of them, and netty's library for TLS by its name."""
    jars = folder.with_name(f"{folder.name}.jars")
    jars.mkdir()
    places = (Path("/"), debian())
    for jar in (jar for place in places for jar in place.glob("usr/share/java/*.jar")):
        (jars / jar.name).unlink(missing_ok=True)
        (jars / jar.name).symlink_to(jar)
    for library in (file for place in places for file in place.glob("usr/lib/*/jni/libnetty-tcnative.so")):
        shutil.copy(library, jars / "libnetty_tcnative.so")  # Debian's name is one that netty does not look for
    path = os.pathsep.join([os.environ["PATH"], unpacked("usr/lib/jvm/*/bin")])
    found = {"JARS": str(jars), "JDK_JAVA_OPTIONS": f"-Djava.library.path={jars}", "PATH": path}
    return found | {"JAVA_TOOL_OPTIONS": QUICK_JAVA}


def ruby(folder: Path) -> Variables:
    """Ruby looks for its library and its gems in the folders that it was built for."""
    library = ("usr/lib/ruby/vendor_ruby", "usr/lib/*/ruby/vendor_ruby/*", "usr/lib/ruby/3*", "usr/lib/*/ruby/3*")
    gems = ("usr/share/rubygems-integration/*", "usr/lib/*/rubygems-integration/*")
    return {"RUBYLIB": unpacked(*library), "GEM_PATH": unpacked(*gems)}


def npm(folder: Path) -> Variables:
    """The modules are where `npm install` puts them."""
    modules = folder / "node_modules"
    if not modules.exists():
        modules.symlink_to(Path(os.environ["VIRTUAL_ENV"]) / "node_modules")
    return {}


PREPARATIONS: dict[str, Callable[[Path], Variables]] = {
    "cpp": cpp,
    "go": go,
    "java": java,
    "ruby": ruby,
    "typescript": npm,
}
