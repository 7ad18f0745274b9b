#!/usr/bin/env python3
"""Counts what a call on a hot path costs and compares with provider/docs/hot-paths.md (see ci/budget.sh)."""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "provider/docs/hot-paths.md"
ALLOCATOR = re.compile(r"^(malloc|calloc|realloc|free|cfree|posix_memalign|memalign|aligned_alloc|_int_\w+|_mid_memalign.*|sysmalloc.*)$")
# The kernel's page answers it without a system call; under valgrind it is one.
CLOCK = re.compile(r"^(__)?(vdso_)?clock_gettime")
RARE = 1 / 16  # "frequent syscall": more often than once in so many polls


def budgets():
    """The rows of the table: path -> (instructions, forbidden things)."""
    rows = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 3 and cells[0].startswith("`budget_"):
            rows[cells[0].strip("`")] = (int(cells[1]), {word.strip() for word in cells[2].split(",") if word.strip()})
    if not rows:
        sys.exit(f"budget: no row `budget_…` in {TABLE}")
    return rows


def build():
    """Builds what is counted, with what is shipped and as that is, by the words of release() in ci/test.sh (alone, its dependencies could have other
    features), and returns its path."""
    packages = [word for name in ("rustmx-fi", "rustmx-heap", "rustmx-cli", "rustmx-benches") for word in ("-p", name)]
    command = ["cargo", "build", "--release", *packages, "--features", "rustmx-benches/counted", "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    for line in built.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["target"]["name"] == "hotpath":
            return message["executable"]
    sys.exit("budget: `hotpath` does not build")


def locked_instructions(binary):
    """The addresses in the binary of instructions that lock the bus or fence everything."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", binary], stdout=subprocess.PIPE, text=True, check=True).stdout
    pattern = re.compile(r"^\s*([0-9a-f]+):\s+(lock\s|xchg\s.*\(|mfence)", re.M)
    return {int(match[1], 16) for match in pattern.finditer(text)}


class Profile:
    """What callgrind collected between entry and return of one function."""

    def __init__(self, path, function, binary, locked):
        self.calls, self.sites, self.own, self.syscalls, self.locks = 0, [], {}, {}, 0
        fn = called = count = None
        obj = ""
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("fn="):
                fn = line[3:]
            elif line.startswith("ob="):
                obj = line[3:]
            elif line.startswith("cfn="):
                called = line[4:]
            elif line.startswith("calls="):
                count = int(line[6:].split()[0])
            elif line.startswith("0x"):
                numbers = line.split()
                cost = int(numbers[2]) if len(numbers) > 2 else 0
                if count is not None:
                    if called == function and cost:
                        self.calls += count
                        # The very first call of a site stands alone in the profile: it meets cold code.
                        self.sites.append((count, cost))
                    # The C library's `syscall` makes them for several of ours, of which this path may have called one only.
                    if called == "syscall" and cost and len(numbers) > 3:
                        self.syscalls[fn] = self.syscalls.get(fn, 0) + int(numbers[3])
                    count = None
                    continue
                self.own[fn] = self.own.get(fn, 0) + cost
                if len(numbers) > 3 and fn != "syscall":
                    self.syscalls[fn] = self.syscalls.get(fn, 0) + int(numbers[3])
                if obj == binary and int(numbers[0], 16) in locked:
                    self.locks += cost

    def instructions(self):
        """Of one call, at the call site where it is dearest."""
        return max(cost / count for count, cost in self.sites if count >= self.calls / 20)

    def allocating(self):
        return sum(cost for fn, cost in self.own.items() if ALLOCATOR.match(fn)) / self.calls

    def system_calls(self):
        return sum(n for fn, n in self.syscalls.items() if self.own.get(fn) and not CLOCK.match(fn))


def profile(binary, function, locked, folder):
    out = folder / f"{function}.callgrind"
    command = ["valgrind", "--tool=callgrind", f"--toggle-collect=hotpath::{function}", "--dump-instr=yes",
               "--collect-systime=yes", "--compress-pos=no", "--compress-strings=no",
               f"--callgrind-out-file={out}", binary, "--count", function]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"budget: {' '.join(command)}\n{done.stdout[-2000:]}")
    return Profile(out, f"hotpath::{function}", binary, locked)


def main():
    rows = budgets()
    binary = build()
    folder = ROOT / "target/budget"
    folder.mkdir(parents=True, exist_ok=True)
    symbols = subprocess.run(["nm", "-C", binary], stdout=subprocess.PIPE, text=True, check=True).stdout
    present = set(re.findall(r"\bhotpath::(budget_\w+)$", symbols, re.M))
    locked = locked_instructions(binary)
    found = {name: profile(binary, name, locked, folder) for name in sorted(present)}
    polls = sum(found[name].calls for name in found if name in ("budget_idle", "budget_receive", "budget_completion"))
    print(f"{'path':<28}{'instructions':>13}{'budget':>8}{'allocator':>11}{'locked':>8}{'syscalls':>10}   verdict")
    failed = 0
    names = sorted(present | set(rows))
    for name in names:
        if name not in found or not found[name].sites:
            # Of two functions with the same body one may be all that is left: who means two paths must write two (see budget_completion).
            why = "is not called" if name in found else "not in the binary: renamed, gone, or the same body as another one"
            print(f"{name:<28}{'-':>13}{rows[name][0] if name in rows else 0:>8}{'':>29}   {why}")
            failed += 1
            continue
        one = found[name]
        instructions, locks, calls = one.instructions(), one.locks / one.calls, one.system_calls()
        of = one.calls if "network" in name else max(polls, 1)
        wrong = []
        if name not in rows:
            wrong.append("no row in provider/docs/hot-paths.md")
        budget, forbidden = rows.get(name, (0, set()))
        if name in rows and instructions > budget:
            wrong.append("over budget")
        # Tables that grow in the first rounds allocate; an allocation in each call would be 20 instructions and more.
        if "allocation" in forbidden and one.allocating() >= 1:
            wrong.append("allocates")
        if "lock" in forbidden and locks >= 0.05:
            wrong.append("locked instructions")
        if "syscall" in forbidden and calls:
            wrong.append("system calls")
        if "second syscall" in forbidden and not 0.95 <= calls / one.calls <= 1.05:
            wrong.append("not one system call")
        if "frequent syscall" in forbidden and calls > polls * RARE:
            wrong.append(f"a system call more often than once in {round(1 / RARE)} polls")
        failed += bool(wrong)
        print(f"{name:<28}{instructions:>13.0f}{budget:>8}{one.allocating():>11.2f}{locks:>8.2f}"
              f"{calls / of if calls else 0:>10.3f}   {', '.join(wrong) or 'ok'}")
    print("A call, at the dearest of its call sites. allocator: instructions inside malloc and free. locked: locked or")
    print("fencing instructions. syscalls: for one poll, made in functions of this path (the clock's left out: vDSO); by the network: for one call.")
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
