//! What `rustmx tune` keeps of the file that it replaces.

use super::left_out::left_out;
use super::{cores, run, rustmx, scratch, settled};
use rustmx::Config;
use rustmx::config::force::Way;
use rustmx::select::model::{About, Curve, Memory, Model, Operation, PeerClass, Point, Source};
use rustmx::select::profile::{Key, Profile};
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;

/// A profile of this machine and the usual settings that knows a link.
fn with_link(name: &str) -> Profile {
    let mut costs = Model::default();
    let points = [1024, 65536].map(|size| Point { size, ns: size as f64, spread: 0.0 });
    let (operation, peer, memory, source) = (Operation::Send, PeerClass::Network, Memory::Private, Source::Reused);
    let curve = Curve::new(points.into()).expect("sound");
    costs.add(About { operation, peer, memory, source, way: Way::Eager }, curve).expect("the first");
    let (key, links) = (Key::here(&Config::default()), vec![(name.into(), costs)]);
    Profile { key, best: Vec::new(), kernel_copies: true, handover_ns: 1.0, model: Model::default(), links }
}

/// Also with a profile that is not in force because nobody wants one, and at a place whose name is no text.
#[test]
fn links_that_were_measured_stay() {
    if cores() < 2 {
        return left_out("cores", "this process may use one core");
    }
    let home = scratch("kept").join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    let (path, old) = (home.join("rustmx/profile.toml"), with_link("eth7, MTU 1500"));
    old.save(&path).expect("saved");
    let mut command = rustmx(&["tune", "--quick", "--json"]);
    command.env("XDG_CONFIG_HOME", &home).env("FI_RUSTMX_PROFILE", "off").envs(settled());
    let (out, said, told) = run(command);
    assert!(out.status.success(), "{told}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(all["saved"], path.to_string_lossy().as_ref());
    let new = Profile::parse(&std::fs::read_to_string(&path).expect("saved")).expect("a profile");
    assert!(new.model != old.model, "it was replaced");
    let [eth, lo] = &new.links[..] else { panic!("{:?}", new.links) };
    assert!(*eth == old.links[0] && lo.0.starts_with("lo"), "{:?}", new.links);
    std::fs::remove_dir_all(home.parent().expect("a directory")).expect("removed");
}
