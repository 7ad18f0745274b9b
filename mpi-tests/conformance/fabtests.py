"""fabtests, libfabric's own tests of a provider, by their own runfabtests.sh."""

import re
import shutil
import subprocess

import record
from launch import CORES, Elsewhere, TARGET, Unusable, WORK, apart, build, carried, run, selected
from record import Case

NAME = "fabtests"
BASELINE = "tcp"
PROVIDERS = {"rustmx": "rustmx", "tcp": "tcp;ofi_rxm"}

SETS = {
    "quick": "unit,functional,short",
    "standard": "standard",
    "unit": "unit",
    "functional": "functional",
    "uber": "complex",
    "few": "complex",
}
PARTS = {}
for _set, _what in {
    "quick": "unit, functional and short tests",
    "standard": "benchmarks with all message sizes",
    "unit": "unit tests only (in quick, too)",
    "functional": "functional tests only (in quick, too)",
}.items():
    PARTS[_set] = _what
    PARTS[f"{_set}-b"] = f"{_what}, addresses exchanged out of band (-b)"
PARTS["uber"] = "fi_ubertest with mpi-tests/conformance/rdm.test"
PARTS["few"] = "the same with 4 of the 14 types of atomics"
SHORT = ("unit", "few")
# Quick has them, or uber.
LEFT_OUT_OF_ALL = ("unit", "unit-b", "functional", "functional-b", "few")
# Atomics of fourteen types are nine tenths of the 1743 cases of uber; with these, of one byte, of several, and the longest ones, there are 632.
FEW = ("INT8", "UINT64", "FLOAT", "LONG_DOUBLE_COMPLEX")

# Seconds for one test; runfabtests.sh itself would give 120.
LIMITS = {"uber": "300", "few": "300", "standard": "300"}

TOP = WORK / "fabtests"
BIN = TOP / "install/bin"


def prepare():
    if not apart():
        # It ends every process of the machine whose name begins with fi_.
        raise Unusable("runfabtests.sh needs a PID namespace of its own, and unshare is refused here")
    sources = sorted(TARGET.glob("src/mpich-*/modules/libfabric/fabtests"))
    if not sources:
        raise Unusable("no source of fabtests under target/src: run ci/setup.sh suites")
    if (BIN / "runfabtests.sh").exists():
        return
    # A copy, because autogen.sh writes into the source.
    shutil.rmtree(TOP, ignore_errors=True)
    shutil.copytree(sources[0], TOP / "source", symlinks=True)
    objects = TOP / "build"
    objects.mkdir()
    build(["./autogen.sh"], TOP / "autogen.log", cwd=TOP / "source", label="fabtests: autogen")
    build(["../source/configure", f"--prefix={TOP / 'install'}"], TOP / "configure.log", cwd=objects,
          label="fabtests: configure")
    build(["make", f"-j{CORES}"], TOP / "make.log", cwd=objects, label="fabtests: make")
    build(["make", "install"], TOP / "install.log", cwd=objects, label="fabtests: make install")


def versions():
    text = (TOP / "source/configure.ac").read_text()
    return {"fabtests": re.search(r"AC_INIT\(\[fabtests\], \[([\d.]+)\]", text)[1], "libfabric": libfabric()}


def libfabric():
    info = subprocess.run(["fi_info", "--version"], capture_output=True, text=True).stdout
    found = re.search(r"libfabric: ([\d.]+)", info)
    return found[1] if found else "?"


def environment(transport):
    if transport == "rustmx":
        return selected()
    return {}


def prove(transport):
    """Two processes of fabtests' own fi_rdm_pingpong must have used rustmx."""
    if transport != "rustmx":
        return
    log = TOP / "logs/proof.log"
    pair = f'{BIN}/fi_rdm_pingpong -I 5 -p rustmx -s 127.0.0.1 & sleep 1;' \
           f'{BIN}/fi_rdm_pingpong -I 5 -p rustmx -s 127.0.0.1 127.0.0.1; wait'
    run(["sh", "-c", pair], log, env=environment(transport) | {"FI_RUSTMX_STATS": "1"}, limit=30)
    if not carried(log.read_text(errors="replace"), 2):
        raise Elsewhere(f"fi_rdm_pingpong did not use rustmx, log: {log}")


def run_part(part, transport):
    prove(transport)
    base, in_band = part.removesuffix("-b"), not part.endswith("-b")
    patterns = record.excludes(NAME) + ([] if in_band else record.excludes(f"{NAME}-b"))
    logs = TOP / "logs" / transport
    logs.mkdir(parents=True, exist_ok=True)
    # runfabtests.sh takes a line with # anywhere in it for a comment.
    plain = logs / f"{part}.exclude"
    plain.write_text("".join(f"{pattern}\n" for pattern, _ in patterns) or "no-test-has-this-name\n")
    command = [BIN / "runfabtests.sh", "-vvv", "-t", SETS[base], "-f", plain, "-p", BIN]
    command += ["-T", LIMITS.get(base, "120")]
    if not in_band:
        # Without a source address both sides would ask for the same service.
        command += ["-b", "-L", "-s 127.0.0.1", "-C", "-s 127.0.0.1"]
    if SETS[base] == "complex":
        asked = logs / f"{part}.test"
        asked.write_text(questions((record.HERE / "rdm.test").read_text(), FEW if base == "few" else None))
        command += ["-u", asked]
    command.append(PROVIDERS[transport])
    log = logs / f"{part}.log"
    code = run(command, log, env=environment(transport), cwd=logs, limit=5400, label=f"fabtests {part}")
    return parse(log.read_text(errors="replace"), patterns, code)


def questions(text, types):
    """What fi_ubertest is asked; of atomics only some `types`, if they are named."""
    def some(found):
        kept = [line for line in found[2].splitlines(True) if types is None or line.strip(" \t\n,").removeprefix("FI_") in types]
        assert types is None or len(kept) == len(types), f"{kept} of {types}"
        return found[1] + "".join(kept)

    asked, lists = re.subn(r"(datatype: \[\n)((?:\s*FI_\w+,\n)+)", some, text)
    assert lists, "no list of types"
    return asked


def uber(block):
    """The cases of fi_ubertest, which counts them at its end and names none."""
    client = block.partition("client_stdout")[2]
    kinds = {"Success": "pass", "ENODATA": "notrun", "EIO": "fail", "ENOSYS": "fail", "ERROR": "fail"}
    cases = []
    for word, kind in kinds.items():
        for count in re.findall(rf"^ +{word}: +(\d+)", client, re.M)[-1:]:
            cases += [Case(f"fi_ubertest {word} {n + 1}", kind) for n in range(int(count))]
    if not any(case.result == "pass" for case in cases):
        cases.append(Case("fi_ubertest", "fail", detail=block[-4000:]))
    return cases


def parse(text, patterns, code):
    cases = []
    for block in re.split(r"^- name: +", text, flags=re.M)[1:]:
        name = re.sub(r' -p "[^"]*"$', "", block.splitlines()[0].strip())
        result = re.search(r"^ +result: (\w+)", block, re.M)[1]
        seconds = float((re.search(r"^ +time: +(\d+)", block, re.M) or [0, 0])[1])
        kind = {"Pass": "pass", "Notrun": "notrun", "Excluded": "excluded"}.get(result, "fail")
        detail = next((why for pattern, why in patterns if re.search(pattern, name)), "") if kind == "excluded" else ""
        if kind == "fail":
            killed = "ended by a signal before its time: another runfabtests.sh on this machine?\n"
            detail = (killed if re.search(r"runfabtests.sh: line \d+: +\d+ Killed", block) else "") + block[:4000]
        if name == "fi_ubertest":
            cases += uber(block)
        else:
            cases.append(Case(name, kind, seconds, detail))
    if not re.search(r"^# Total Fail", text, re.M):
        cases.append(Case("runfabtests.sh reaches its end", "fail", detail=f"exit code {code}"))
    return cases
