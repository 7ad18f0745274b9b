//! Programs that know nothing of us, with the heap preloaded, against themselves without it.

mod support;

use std::fmt::Write;
use support::{library, plain, preloaded, scratch, succeeds};

/// Runs a shell script with and without the heap; it must print the same, and something.
fn same(name: &str, script: &str) {
    let dir = scratch(name);
    let mut printed = vec![];
    for mut command in [plain("bash"), preloaded("bash")] {
        printed.push(succeeds(command.current_dir(&dir).args(["-ec", script])));
    }
    assert!(!printed[0].is_empty());
    assert_eq!(printed[0], printed[1]);
}

#[test]
fn the_heap_is_there() {
    // Else all that follows would test nothing.
    let maps = succeeds(preloaded("cat").arg("/proc/self/maps"));
    assert!(maps.contains(&library().file_name().expect("a name").to_string_lossy().into_owned()));
    assert!(maps.contains("/memfd:rustmx-heap (deleted)"), "cat has a buffer of 128 KiB:\n{maps}");
}

#[test]
fn bash() {
    let script = r#"
        a=(); for i in {1..3000}; do a+=("$i$(printf %0.s= {1..20})"); done
        echo "${#a[@]} ${a[2999]}"; x=$(echo "${a[@]}" | md5sum); echo "$x"
        (for i in 1 2 3; do (echo "deep $i"); done) | sort -r
        s=x; for i in {1..16}; do s=$s$s; done; echo ${#s}; echo "$s" | wc -c
        (trap 'echo bye' EXIT; echo in) & wait"#;
    same("bash", script);
}

#[test]
fn python() {
    let dir = scratch("python");
    let script = r#"
import os, sys, json, zlib, threading, subprocess, hashlib, multiprocessing as mp
big = bytearray(50_000_000); big[::4096] = b"x" * len(big[::4096])
rows = [{"n": i, "s": "v" * (i % 5000)} for i in range(3000)]
text = json.dumps(rows); assert json.loads(text) == rows
assert zlib.decompress(zlib.compress(text.encode())) == text.encode()
def work(seed, out):
    out.append(hashlib.sha1(b"".join(bytes([seed]) * (i * 37 % 90000) for i in range(300))).hexdigest())
out = []; threads = [threading.Thread(target=work, args=(i, out)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
def child(q): big[0:4] = b"mine"; q.send((bytes(big[4096:4100]), sum(big[::4096]) % 251, hashlib.sha1(bytes(big)).hexdigest()))
for i in range(5):
    a, b = mp.Pipe(); p = mp.get_context("fork").Process(target=child, args=(b,)); p.start(); print(a.recv()); p.join()
    assert big[0:4] == b"x\0\0\0" and p.exitcode == 0
pid = os.fork()
if pid == 0:
    big[:] = b"c" * len(big); os._exit(3)
assert os.waitpid(pid, 0)[1] == 3 << 8 and big[1] == 0
print(subprocess.run(["echo", "run"], capture_output=True, close_fds=True).stdout, sorted(out), len(text))
with mp.get_context("fork").Pool(3) as pool: print(pool.map(len, [b"p" * 100000 * i for i in range(6)]))
"#;
    let run = |mut c: std::process::Command| succeeds(c.current_dir(&dir).args(["-c", script]));
    let without = run(plain("python3"));
    assert!(without.lines().count() == 7, "{without}");
    assert_eq!(without, run(preloaded("python3")));
}

#[test]
fn gcc() {
    let root = env!("CARGO_MANIFEST_DIR");
    let script = format!(
        "gcc -O2 -Wall -fno-builtin -pthread -I {root}/../include {root}/tests/c/fork.c -S -o - | md5sum
         g++ -std=c++17 -O1 -pthread {root}/tests/c/objects.cc -o objects && ./objects"
    );
    same("gcc", &script);
}

#[test]
fn sort_and_others() {
    let dir = scratch("sort");
    let mut lines = String::new();
    let mut x: u64 = 88172645463325252;
    for _ in 0..300_000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let _ = writeln!(lines, "{x:x} {}", x % 1000);
    }
    std::fs::write(dir.join("lines"), &lines).expect("a file");
    let script = "sort --parallel=2 lines | md5sum; sort -k2n -S 1M lines | md5sum; gzip -c lines | gunzip | md5sum
                  awk '{n[$2]++; s[NR % 99] = s[NR % 99] substr($1, 1, 3)} END {print length(n), length(s[5])}' lines; tar c lines | tar xO | md5sum
                  grep -c '^f.*9$' lines; sed 's/a/bb/g' lines | tac | md5sum; find / -maxdepth 2 2>/dev/null | wc -l | wc -l";
    let run = |mut c: std::process::Command| succeeds(c.current_dir(&dir).args(["-ec", script]));
    assert_eq!(run(plain("bash")), run(preloaded("bash")));
}
