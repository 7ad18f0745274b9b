//! Standard output on a full disk.

use super::{LIMIT, run, run_as_it_is, rustmx};
use std::process::Stdio;

/// Whoever keeps what a command says of itself hears that it is not there.
#[test]
fn help_that_cannot_be_written_is_told() {
    for args in [&["--help"][..], &["--version"], &["tune", "--help"]] {
        let mut command = rustmx(args);
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let (out, _, told) = run_as_it_is(LIMIT, command.stdout(full).stderr(Stdio::piped()));
        assert!(out.status.code() == Some(1) && told.contains("cannot write to standard output"), "{args:?}: {told}");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = rustmx(args);
        let (out, _, told) = run_as_it_is(LIMIT, command.stdout(writer).stderr(Stdio::piped()));
        assert!(out.status.success() && told.is_empty(), "who reads only the beginning has what he wants: {told}");
        let (out, said, told) = run(rustmx(args));
        assert!(out.status.success() && told.is_empty() && said.contains("rustmx"), "{said}{told}");
    }
    // What is wrong with the command line is told elsewhere.
    let (out, said, told) = run(rustmx(&["nonsense"]));
    assert!(out.status.code() == Some(2) && said.is_empty() && told.contains("Usage"), "{told}");
}
