//! `--heap`: what it names must be the heap.

use super::left_out::left_out;
use super::{cores, heap, run, rustmx};

/// Nothing is measured without what was asked for; a file that ld.so cannot load would be told by that alone, once for each process.
#[test]
fn what_is_not_the_heap_is_refused() {
    let this = env!("CARGO_BIN_EXE_rustmx");
    for (path, why) in [
        ("/nonsense.so", "there is no such file"),
        ("/", "that is no file"),
        ("/etc/passwd", "no shared library"),
        ("/dev/null", "that is no file"),
        (this, "no librustmx_heap.so"),
    ] {
        for command in ["compare", "tune"] {
            let (out, said, told) = run(rustmx(&[command, "--quick", "--heap", path]));
            assert!(out.status.code() == Some(1) && said.is_empty(), "{path}: {told}");
            assert!(
                told.contains(&format!("--heap {path}: ")) && told.contains(why) && told.contains("cargo build"),
                "{path}: {told}"
            );
        }
    }
    let Some(heap) = heap() else { return left_out("heap", "librustmx_heap.so is not built") };
    let mut off = rustmx(&["compare", "--quick", "--heap", heap.to_str().expect("text")]);
    off.env("RUSTMX_HEAP", "off");
    let (out, _, told) = run(off);
    assert!(cores() < 2 || out.status.code() == Some(1) && told.contains("and RUSTMX_HEAP)"), "{told}");
}
