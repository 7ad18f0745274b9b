#!/usr/bin/env python3
"""Checks the rules of ci/floors.toml: floors, the fence around unsafe, sizes, names.

Usage: ci/check-floors.py [--self-test] [--quiet] [--root DIR]

  --self-test  checks the checker: seeded violations must be found, a clean tree must pass
  --quiet      no warnings (they never change the exit code)
  --root DIR   another tree than the one this file is in

Prints each violation with its rule and what to do about it; exits with 1 if there was one.
"""

import argparse
import pathlib
import re
import sys
import tempfile
import tomllib

RULES = {
    "floor": "move the code down, or pass the value in; a new exception in ci/floors.toml needs a reason",
    "apart": "the files of this folder do not know each other: put what both need into its mod.rs",
    "root": "name the module that owns the item, not the re-export at the crate's root",
    "unknown": "put the module on a floor in ci/floors.toml and in the table of provider/src/lib.rs",
    "stale": "the entry of ci/floors.toml is about nothing that exists: remove it",
    "libfabric": "the engine knows no libfabric type: convert in capi/",
    "libc": "the engine calls the kernel through rustix; what rustix does not have, in a file listed in [fence] libc of ci/floors.toml",
    "extern": "C functions and C callers belong in capi/",
    "fence": "call a safe function of mem/ or sys/; widening the fence is a decision for [fence] in ci/floors.toml",
    "unsafety": "say under the header `#![expect(unsafe_code)]` and, on a `// UNSAFETY:` line, why this file needs it",
    "safety": "write `// SAFETY:` within the 6 lines above: which invariant, and who upholds it",
    "size": "split the file by role or by state",
    "name": "name the file after the concept that it holds",
}
VAGUE = {"util", "utils", "common", "helper", "helpers", "misc", "base"}
SAFETY_REACH = 6


# ---- reading Rust ----

TOKEN = re.compile(
    r"""(?P<line>//[^\n]*)|(?P<block>/\*)|(?P<raw>\b(?:b|c)?r(?P<hashes>\#*)")|(?P<str>\b[bc]?")"""
    r"""|(?P<bare>")|(?P<char>'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])')""",
    re.X,
)


def strip(text):
    """The text with comments and the insides of literals blanked; positions and lines stay."""
    out, at = [], 0
    while match := TOKEN.search(text, at):
        start, end = match.span()
        out.append(text[at:start])
        if match["block"]:
            depth, end = 1, start + 2
            while depth and (step := re.compile(r"/\*|\*/").search(text, end)):
                depth += 1 if step[0] == "/*" else -1
                end = step.end()
            end = end if depth == 0 else len(text)
        elif match["raw"]:
            close = text.find('"' + match["hashes"], end)
            end = len(text) if close < 0 else close + 1 + len(match["hashes"])
        elif match["str"] or match["bare"]:
            close = re.compile(r'(?:[^"\\]|\\.)*"', re.S).match(text, end)
            end = close.end() if close else len(text)
        literal = match["raw"] or match["str"] or match["bare"]
        blank = re.sub(r"[^\n]", " ", text[start:end])
        out.append('"' + blank[1:] if literal else blank)
        at = end
    out.append(text[at:])
    return "".join(out)


def closing(code, start):
    """The position after the brace that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(code)


def use_tree(code, at, prefix):
    """The paths of a tree `a::{b, c::d}` that goes on at `at`, as lists of names."""
    while True:
        at = re.compile(r"\s*").match(code, at).end()
        if code[at : at + 1] == "{":
            paths, at = [], at + 1
            while at < len(code) and code[at] != "}":
                more, at = use_tree(code, at, prefix)
                paths += more
                at = re.compile(r"[\s,]*").match(code, at).end()
                if not more:
                    break
            return paths, at + 1
        name = re.compile(r"(?:r#)?(\w+)|\*").match(code, at)
        if not name:
            return ([prefix] if prefix else []), at
        prefix = prefix + [name[1] or "*"]
        at = name.end()
        alias = re.compile(r"\s+as\s+\w+").match(code, at)
        at = alias.end() if alias else at
        colons = re.compile(r"\s*::(?!\s*<)").match(code, at)
        if not colons:
            return [prefix], at
        at = colons.end()


class Source:
    """One file, and where it stands in the tree of modules."""

    def __init__(self, root, path):
        self.path = path
        self.name = str(path.relative_to(root))
        self.text = path.read_text(encoding="utf-8")
        self.code = strip(self.text)
        self.lines = self.text.count("\n")
        self.module = []
        self.is_test = False
        self.inline = []  # (start, end, name, is it a test)
        for match in re.finditer(r"((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*\{", self.code):
            test = re.search(r"cfg\(\s*(?:all\(\s*)?test\b", match[1]) is not None
            self.inline.append((match.start(), closing(self.code, match.end() - 1), match[2], test))

    def line(self, position):
        return self.code.count("\n", 0, position) + 1

    def module_at(self, position):
        return self.module + [name for start, end, name, _ in self.inline if start <= position < end]

    def in_test(self, position):
        return self.is_test or any(s <= position < e for s, e, _, test in self.inline if test)

    def paths(self):
        """Every path of this crate that the file names: (position, [module, item, …])."""
        for match in re.finditer(r"(?<!\w)\$?(crate|(?:self\s*::\s*)?super(?:\s*::\s*super)*)\s*::", self.code):
            here = [] if match[1] == "crate" else self.module_at(match.start())
            ups = len(re.findall("super", match[1]))
            base = here[: len(here) - ups] if ups else here
            for path in use_tree(self.code, match.end(), list(base))[0]:
                yield match.start(), path


def load(root, folder):
    """The files of a crate's source folder, each with its module path."""
    base = root / folder
    sources = {path: Source(root, path) for path in sorted(base.rglob("*.rs"))}
    for path, source in sources.items():
        parts = list(path.relative_to(base).with_suffix("").parts)
        source.module = [] if parts == ["lib"] else parts[:-1] if parts[-1] == "mod" else parts
    for path, source in sources.items():
        declared = r"((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;"
        for match in re.finditer(declared, source.code):
            # The stripped code has no literals, the path attribute is one.
            given = re.search(r'#\[path\s*=\s*"([^"]+)"', source.text[match.start() : match.end()])
            if given:
                child = sources.get(path.parent / given[1])
            else:
                own = path.parent if path.name in ("mod.rs", "lib.rs") else path.with_suffix("")
                child = sources.get(own / f"{match[2]}.rs") or sources.get(own / match[2] / "mod.rs")
            if child is None:
                continue
            child.module = source.module_at(match.start()) + [match[2]]
            child.is_test |= re.search(r"cfg\(\s*(?:all\(\s*)?test\b", match[1]) is not None
    return list(sources.values())


# ---- rules ----


class Report:
    def __init__(self):
        self.violations, self.warnings = [], []

    def violation(self, rule, where, what):
        if (rule, where, what) not in self.violations:
            self.violations.append((rule, where, what))

    def warn(self, where, what):
        self.warnings.append((where, what))


class Floors:
    def __init__(self, rules):
        self.floor_of, self.may = {}, {}
        self.names = [floor["name"] for floor in rules["floor"]]
        lower = set()
        for index, floor in enumerate(rules["floor"]):
            for module in floor["modules"]:
                self.floor_of[module] = index
                self.may[module] = lower - set(floor.get("never", []))
            lower = lower | set(floor["modules"])
        self.exceptions = [(e["from"].split("::"), e["to"].split("::")) for e in rules.get("exception", [])]
        self.used, self.seen = set(), set()

    def excepted(self, source, target):
        for index, (left, right) in enumerate(self.exceptions):
            if source[: len(left)] == left and target[: len(right)] == right:
                self.used.add(index)
                return True
        return False


def check_imports(report, source, floors, apart):
    if not source.module:
        return  # lib.rs re-exports
    own = source.module[0]
    floors.seen.add(own)
    if own not in floors.floor_of:
        report.violation("unknown", source.name, f"module `{own}` is on no floor")
        return
    for position, path in source.paths():
        where = f"{source.name}:{source.line(position)}"
        top = path[0] if path else "*"
        here = source.module_at(position)
        if top == own:
            if own in apart and len(here) > 1 and len(path) > 1 and path[1] != here[1] and (own, path[1]) in apart[own] and not floors.excepted(here, path):
                report.violation("apart", where, f"`{own}::{here[1]}` uses `{'::'.join(path)}`")
        elif top not in floors.floor_of:
            # In a macro that is used elsewhere `$crate::…` may be any item; a module's name is a folder or file.
            report.violation("root", where, f"`crate::{'::'.join(path) or '*'}`")
        elif top not in floors.may[own] and not floors.excepted(here, path):
            mine, its = (floors.names[floors.floor_of[m]] for m in (own, top))
            report.violation("floor", where, f"`{own}` ({mine}) uses `{'::'.join(path)}` ({its})")


def check_words(report, source, may_libc, may_call=False):
    code = source.code
    for match in re.finditer(r"\b(?:fid?|FI)_\w+", code):
        report.violation("libfabric", f"{source.name}:{source.line(match.start())}", f"`{match[0]}`")
    for match in () if may_libc else re.finditer(r"\blibc\s*::|\b(?:use|crate)\s+libc\b", code):
        report.violation("libc", f"{source.name}:{source.line(match.start())}", f"`{match[0].strip()}`")
    for match in () if may_call else re.finditer(r'\bextern\s*(?:"[^\n{;]{0,12})?(?:fn|\{)', code):
        report.violation("extern", f"{source.name}:{source.line(match.start())}", "a C interface")


def check_unsafe(report, source, may_have):
    lines = source.text.splitlines()
    # The type of a function pointer is no unsafe code.
    found = re.finditer(r"\bunsafe\b(?!\s+(?:extern\s+\"[^\n\"]*\"?\s*)?fn\s*\()", source.code)
    for match in re.finditer(r"\bunsafe\s*(?:\{|impl\b)", source.code):
        line = source.line(match.start())
        above = lines[max(0, line - 1 - SAFETY_REACH) : line]
        if not any("SAFETY:" in text.replace("UNSAFETY:", "") for text in above):
            report.violation("safety", f"{source.name}:{line}", "unsafe without its reason")
    if may_have is None:
        return
    # Tests may say it at the item; the fence is about what ships.
    shipped = [m for m in found if not source.in_test(m.start())]
    if not shipped:
        return
    where = f"{source.name}:{source.line(shipped[0].start())}"
    if not may_have:
        report.violation("fence", where, "unsafe outside the fence")
    elif not re.search(r"#!\[expect\(unsafe_code\)\]", source.code) or not re.search(r"^// UNSAFETY: \S", source.text, re.M):
        report.violation("unsafety", where, "a file with unsafe that does not say why")


def parameters(text):
    """How many there are in what stands between a function's parentheses."""
    depth, count = 0, 0
    for char in re.sub(r"->|=>", "", text):
        depth += (char in "(<[{") - (char in ")>]}")
        count += char == "," and depth == 0
    return 0 if not text.strip() else count + (not text.rstrip().endswith(","))


def check_size(report, source, size):
    if source.is_test:
        return
    tests = sum(source.code.count("\n", s, e) + 1 for s, e, _, test in source.inline if test)
    lines = source.lines - tests
    if lines > size["hard"]:
        report.violation("size", source.name, f"{lines} lines that are not tests, the limit is {size['hard']}")
    elif lines > size["soft"]:
        report.warn(source.name, f"{lines} lines that are not tests (aim: at most {size['soft']})")
    for match in re.finditer(r"(extern\s*\"[^\n]*)?\bfn\s+(\w+)[^(;{]*\(", source.code):
        if source.in_test(match.start()):
            continue
        where = f"{source.name}:{source.line(match.start())}"
        depth, at = 1, match.end()
        while depth and at < len(source.code):
            depth += (source.code[at] == "(") - (source.code[at] == ")")
            at += 1
        arguments = re.sub(r"^\s*&?\s*(?:'\w+\s+)?(?:mut\s+)?self\b\s*,?", "", source.code[match.end() : at - 1])
        # The signatures of C are not ours to choose.
        if not match[1] and "extern" not in source.code[max(0, match.start() - 16) : match.start()]:
            if (count := parameters(arguments)) > size["parameters"]:
                report.warn(where, f"fn {match[2]} takes {count} parameters (aim: {size['parameters']}, then a struct)")
        body = re.compile(r"[^;{]*\{").match(source.code, at)
        if body:
            length = source.code.count("\n", match.start(), closing(source.code, body.end() - 1)) + 1
            if length > size["function"]:
                report.warn(where, f"fn {match[2]} has {length} lines (aim: at most {size['function']})")


def check_tree(root):
    rules = tomllib.loads((root / "ci/floors.toml").read_text(encoding="utf-8"))
    report, floors = Report(), Floors(rules)
    engine, shell = load(root, "provider/src"), load(root, "capi/src") + load(root, "heap/src")
    folders = rules.get("apart", {}).get("folders", [])
    apart = {f: {(f, s.module[1]) for s in engine if s.module[:1] == [f] and len(s.module) > 1} for f in folders}
    fence = {f"provider/src/{name}" for name in rules["fence"]["files"]}
    may_libc, may_call = ({f"provider/src/{name}" for name in rules["fence"].get(key, [])} for key in ("libc", "calls"))
    may_libc_tests = {f"provider/tests/{name}" for name in rules["fence"].get("libc_tests", [])}
    for source in engine:
        check_imports(report, source, floors, apart)
        check_words(report, source, source.name in may_libc, source.name in may_call)
        check_unsafe(report, source, source.name in fence)
    for source in shell:
        check_unsafe(report, source, True)
    tool = load(root, "cli/src")
    for source in tool:
        check_unsafe(report, source, source.name in {f"cli/src/{name}" for name in rules["fence"].get("command", [])})
    for source in engine + shell + tool:
        check_size(report, source, rules["size"])
        vague = VAGUE & set(pathlib.Path(source.name).with_suffix("").parts)
        if vague:
            report.violation("name", source.name, f"`{vague.pop()}` says nothing")
    for folder in ("provider/tests", "provider/benches", "capi/tests", "cli/tests", "heap/tests"):
        for path in sorted((root / folder).rglob("*.rs")):
            source = Source(root, path)
            check_unsafe(report, source, None)
            if folder.startswith("provider"):
                check_words(report, source, source.name in may_libc_tests)
    for module in sorted(set(floors.floor_of) - floors.seen):
        report.violation("stale", "ci/floors.toml", f"module `{module}` does not exist")
    for index, (left, right) in enumerate(floors.exceptions):
        if index not in floors.used:
            report.violation("stale", "ci/floors.toml", f"exception {'::'.join(left)} -> {'::'.join(right)} is not used")
    holders = {s.name for s in engine if re.search(r"\bunsafe\b", s.code)}
    for name in sorted(fence - holders):
        report.violation("stale", "ci/floors.toml", f"{name} has no unsafe")
    return report, len(engine) + len(shell)


# ---- checking the checker ----

TOML = """
floor = [
  { name = "words", modules = ["types", "error"] },
  { name = "machine", modules = ["mem"] },
  { name = "protocols", modules = ["protocol", "peer"], never = ["error"] },
  { name = "engine", modules = ["endpoint"] },
]
exception = [{ from = "error", to = "types", why = "test" }]
apart = { folders = ["protocol"] }
fence = { files = ["mem/user.rs"] }
size = { hard = 30, soft = 20, function = 10, parameters = 3 }
"""
CLEAN = {
    "lib.rs": "pub mod types; pub mod error; pub mod mem; pub mod protocol; pub mod peer; pub mod endpoint;\npub use types::A;\n",
    "types.rs": "//! fi_send(3), use crate::endpoint\npub struct A; /* libc::x /* nested */ fi_x */\npub const S: &str = \"crate::endpoint fi_open\";\n",
    "error.rs": "use crate::types::A;\npub fn lifetimes<'a>(x: &'a A, c: char) -> &'a A { let _ = c == '\"' || c == 'x'; x }\n",
    "mem/mod.rs": "pub mod user;\n",
    "mem/user.rs": "#![expect(unsafe_code)]\n// UNSAFETY: test.\npub fn f() {\n    // SAFETY: test.\n    unsafe { g() }\n}\n",
    "protocol/mod.rs": "pub mod eager; pub mod stream;\npub use eager::E;\n",
    "protocol/eager.rs": "use super::E as F;\nuse crate::{types::A, mem::{self, user}};\n",
    "protocol/stream.rs": "use super::E;\n#[cfg(test)]\n#[path = \"stream_tests.rs\"]\nmod tests;\n",
    "protocol/stream_tests.rs": "use super::super::E;\nuse super::*;\n" + "// line\n" * 60,
    "peer.rs": "use crate::types::A;\n#[cfg(test)]\nmod tests {\n    use super::*;\n" + "    // line\n" * 60 + "}\n",
    "endpoint.rs": "use crate::peer;\nuse crate::protocol::{eager::E, stream};\n",
}
SEEDS = [  # rule, file, text put at its end
    ("floor", "types.rs", "use crate::error::Error;\n"),
    ("floor", "mem/user.rs", "fn h() { crate::endpoint::poll(); }\n"),
    ("floor", "mem/user.rs", "use crate::{types::A, protocol::{eager::E}};\n"),
    ("floor", "mem/user.rs", "use super::super::peer::P;\n"),
    ("floor", "mem/mod.rs", "use super::peer;\n"),
    ("floor", "protocol/mod.rs", "use crate::error::Error;\n"),
    ("floor", "protocol/mod.rs", "use crate::peer::P;\n"),
    ("floor", "protocol/stream_tests.rs", "use super::super::super::endpoint;\n"),
    ("apart", "protocol/eager.rs", "use super::stream::S;\n"),
    ("apart", "protocol/eager.rs", "use crate::protocol::stream::S;\n"),
    ("root", "peer.rs", "use crate::A;\n"),
    ("unknown", "novel.rs", "pub struct N;\n"),
    ("libfabric", "peer.rs", "pub fn f(x: *mut fid_ep) {}\n"),
    ("libfabric", "peer.rs", "pub const X: u64 = FI_TAGGED;\n"),
    ("libc", "peer.rs", "pub fn f() -> libc::c_int { 0 }\n"),
    ("extern", "peer.rs", 'pub extern "C" fn f() {}\n'),
    ("fence", "peer.rs", "// SAFETY: test.\nfn f() { unsafe { g() } }\n"),
    ("unsafety", "mem/user.rs", None),
    ("safety", "mem/user.rs", "\n\n\nfn h() {\n\n\n\n    unsafe { g() }\n}\n"),
    ("size", "peer.rs", "// line\n" * 40),
    ("name", "mem/util.rs", "pub struct U;\n"),
    ("stale", "error.rs", None),
]


def plant(root, files):
    for name, text in files.items():
        path = root / "provider/src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "ci").mkdir(exist_ok=True)
    (root / "ci/floors.toml").write_text(TOML, encoding="utf-8")


def self_test():
    passed, failed = 0, 0
    cases = [(None, "clean tree", CLEAN)]
    for rule, name, addition in SEEDS:
        files = dict(CLEAN)
        if rule == "unsafety":
            files[name] = files[name].replace("// UNSAFETY", "// Unsafe")
        elif rule == "stale":
            files[name] = "pub struct Error;\n"
        else:
            files[name] = files.get(name, "") + addition
        cases.append((rule, f"{rule} in {name}: {(addition or '').strip().splitlines()[:1]}", files))
    for rule, what, files in cases:
        with tempfile.TemporaryDirectory() as folder:
            plant(pathlib.Path(folder), files)
            found = [v[0] for v in check_tree(pathlib.Path(folder))[0].violations]
        if found == ([rule] if rule else []):
            passed += 1
        else:
            failed += 1
            print(f"FAIL {what}: expected {rule}, found {found}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    report, files = check_tree(options.root)
    for where, what in [] if options.quiet else report.warnings:
        print(f"warning: {where}: {what}")
    for rule, where, what in report.violations:
        print(f"{where}: {what}\n    rule `{rule}`: {RULES[rule]}")
    print(f"check-floors: {files} files, {len(report.violations)} violations, {len(report.warnings)} warnings")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
