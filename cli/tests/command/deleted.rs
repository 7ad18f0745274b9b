//! A directory that somebody deleted while this program works in it.

use super::{run, rustmx, scratch};
use std::process::Command;

/// Nothing can be put there, which is told before anything is measured.
#[test]
fn a_deleted_directory_is_told_before_anything_is_measured() {
    for (args, option) in [("compare --html page.html", "--html"), ("tune --output profile.toml", "--output")] {
        let place = scratch("deleted");
        std::fs::create_dir(&place).expect("made");
        let mut command = Command::new("sh");
        let this = rustmx(&[]);
        command.args(["-c", &format!("cd \"$1\" && rmdir \"$1\" && exec \"$0\" {args}")]).arg(this.get_program()).arg(&place);
        command.envs(this.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let (out, said, told) = run(command);
        assert_eq!((out.status.code(), said.as_str()), (Some(1), ""), "{told}");
        assert!(told.contains("was deleted") && told.contains(option), "{told}");
    }
}
