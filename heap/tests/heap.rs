//! C programs with the heap preloaded. What each one checks stands at its top, in `tests/c`.

mod support;

use support::{allocator, c_program, compile, compile_with, library, plain, preloaded, run, succeeds};

#[test]
fn all_functions_from_many_threads() {
    for seed in ["1", "2"] {
        c_program("functions.c", &format!("functions-{seed}"), &[seed, "4", "1500"], &[]);
    }
}

#[test]
fn all_functions_from_one_thread_in_small_arenas() {
    c_program("functions.c", "functions-small", &["4", "1", "2000"], &[("RUSTMX_HEAP_RESERVE", "64m")]);
}

#[test]
fn arenas_follow_each_other() {
    c_program("huge.c", "huge", &[], &[("RUSTMX_HEAP_RESERVE", "64m")]);
}

#[test]
fn memory_goes_back() {
    c_program("giveback.c", "giveback", &[], &[]);
}

#[test]
fn a_peer_sees_what_is_written() {
    c_program("query.c", "query", &[], &[]);
}

#[test]
fn cpp_programs() {
    c_program("objects.cc", "objects", &[], &[]);
}

#[test]
fn starting_programs() {
    c_program("programs.c", "starting", &[], &[]);
}

// ---- fork ----

#[test]
fn fork_while_threads_allocate() {
    c_program("fork.c", "fork-threads", &["11", "3", "120"], &[]);
}

#[test]
fn fork_without_threads() {
    c_program("fork.c", "fork-alone", &["12", "0", "100"], &[]);
}

#[test]
fn fork_with_several_arenas_and_shorter_blocks_shared() {
    let settings = [("RUSTMX_HEAP_RESERVE", "64m"), ("RUSTMX_HEAP_MIN", "4k")];
    c_program("fork.c", "fork-arenas", &["13", "2", "40"], &settings);
}

#[test]
fn fork_while_files_are_read_and_flushed() {
    c_program("files.c", "files-many", &["many"], &[]);
    c_program("files.c", "files-one", &["one"], &[]);
}

#[test]
fn what_the_c_library_does_in_a_child() {
    c_program("keys.c", "keys", &[], &[]);
    c_program("keys.c", "keys-least", &[], &[("RUSTMX_HEAP_MIN", "4k")]);
}

#[test]
fn atfork_handlers_of_others_find_their_locks_held() {
    let program = compile_with("order.c", "order-main", &["-DMAIN"]);
    let other = compile_with("order.c", "order-library", &["-shared", "-fPIC"]);
    let (heap, other) = (library().display().to_string(), other.display().to_string());
    for order in [format!("{heap} {other}"), format!("{other} {heap}")] {
        assert_eq!(succeeds(plain(&program).env("LD_PRELOAD", order)), "ok\n");
    }
}

#[test]
fn a_fork_after_the_heap_was_finalised() {
    let program = compile_with("last.c", "last-main", &["-DMAIN"]);
    let other = compile_with("last.c", "last-library", &["-shared", "-fPIC"]);
    let (heap, other) = (library().display().to_string(), other.display().to_string());
    for order in [format!("{heap} {other}"), format!("{other} {heap}")] {
        assert_eq!(succeeds(plain(&program).env("LD_PRELOAD", order)), "main\nok\n");
    }
}

/// Those of limits.c that end well and say nothing.
macro_rules! limits {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            c_program("limits.c", concat!("limits-", stringify!($name)), &[stringify!($name)], &[]);
        }
    )* };
}

limits!(few_addresses some_addresses half_of_the_addresses file_size file_size_later closed no_descriptors no_descriptors_later);
limits!(no_book guard locked locked_once locked_often stack_of_a_child dead_child signalled chain);

#[test]
fn another_allocator_behind_the_heap() {
    let program = compile("limits.c", "limits-behind");
    for name in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let order = format!("{} {}", library().display(), allocator(name).display());
        assert_eq!(succeeds(plain(&program).arg("behind").env("LD_PRELOAD", order)), "ok\n", "{name}");
    }
    c_program("limits.c", "limits-behind-none", &["behind"], &[]);
}

#[test]
fn a_child_gives_back_only_what_it_has() {
    c_program("limits.c", "limits-elsewhere", &["elsewhere"], &[("RUSTMX_HEAP_RESERVE", "128m")]);
}

#[test]
fn a_child_without_memory_for_its_copy_ends() {
    let out = run(preloaded(compile("limits.c", "limits-copy")).arg("no_copy"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && out.stdout == b"ok\n", "{}: {said}", out.status);
    assert_eq!(said, "rustmx heap: no memory for a forked child's copy of the heap (12): the child ends\n");
}

#[test]
fn what_cannot_be_right_ends_the_program() {
    let program = compile("limits.c", "limits-wrong");
    for (what, word) in [("stack", "fork on a stack"), ("bad_free", "free: invalid pointer"), ("twice", "free: invalid pointer")]
    {
        let out = run(preloaded(&program).arg(what));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.starts_with(&format!("rustmx heap: {word}")) && said.lines().count() == 1, "{what}: {said}");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&out.status), Some(6), "{what}: {}", out.status);
    }
}

// ---- settings ----

#[test]
fn settings() {
    let program = compile("settings.c", "settings");
    let mut cases = 0;
    for (name, value, printed, complaint) in [
        ("RUSTMX_HEAP", "off", "libc libc 0", ""),
        ("RUSTMX_HEAP", "OFF", "libc libc 0", ""),
        ("RUSTMX_HEAP", "on", "libc heap 64", ""),
        ("RUSTMX_HEAP", "maybe", "libc heap 64", "RUSTMX_HEAP=maybe: must be on or off; the default, on, is used"),
        ("RUSTMX_HEAP_RESERVE", "3g", "libc heap 3", ""),
        ("RUSTMX_HEAP_RESERVE", "3x", "libc heap 64", "RUSTMX_HEAP_RESERVE=3x: must be 64m to 1024g; the default, 64g, is used"),
        ("RUSTMX_HEAP_MIN", "4k", "heap heap 64", ""),
        ("RUSTMX_HEAP_MIN", "1m", "libc libc 0", ""),
        ("RUSTMX_HEAP_MIN", "64", "libc heap 64", "RUSTMX_HEAP_MIN=64: must be 4k to 1024m; the default, 8k, is used"),
        (
            "RUSTMX_HEAP_MAX",
            "1",
            "libc heap 64",
            "RUSTMX_HEAP_MAX=1: no such setting, there are RUSTMX_HEAP, RUSTMX_HEAP_RESERVE, RUSTMX_HEAP_MIN",
        ),
        (
            "RUSTMX_HEAPX",
            "\u{1b}[1m",
            "libc heap 64",
            "RUSTMX_HEAPX=\\u{1b}[1m: no such setting, there are RUSTMX_HEAP, RUSTMX_HEAP_RESERVE, RUSTMX_HEAP_MIN",
        ),
    ] {
        let out = run(preloaded(&program).env(name, value));
        assert!(out.status.success());
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim_end(), printed, "{name}={value}");
        let said = String::from_utf8_lossy(&out.stderr);
        let expected = if complaint.is_empty() { String::new() } else { format!("rustmx heap: {complaint}\n") };
        assert_eq!(said, expected);
        cases += 1;
    }
    assert_eq!(cases, 11);
    assert_eq!(succeeds(&mut plain(&program)).trim_end(), "libc libc 0");
}
