//! `fi_prov_ini` called by something that is not libfabric, and the report of a panic.
#![expect(unsafe_code)]
// UNSAFETY: calls the provider's functions as libfabric does.

mod support;

use std::ffi::CStr;
use std::process::Command;
use std::time::Duration;

#[test]
fn without_libfabric_the_table_is_complete_and_the_log_silent() {
    let first = rustmx_fi::fi_prov_ini();
    assert_eq!(first, rustmx_fi::fi_prov_ini(), "one structure per caller");
    // SAFETY: the structure lives for the rest of the process, and nothing writes to it here.
    let provider = unsafe { &*first };
    // SAFETY: a C string of the library.
    assert_eq!(unsafe { CStr::from_ptr(provider.name) }, c"rustmx");
    assert!(provider.fi_version >= rustmx_fi::abi::fabric::version(2, 6) && provider.version > 0);
    assert!(provider.context.internal.iter().all(|p| p.is_null()));
    let mut info = std::ptr::null_mut();
    // SAFETY: the call as libfabric makes it; and cleanup, which may come at any time.
    unsafe {
        assert_eq!((provider.getinfo)(0, std::ptr::null(), std::ptr::null(), 0, std::ptr::null(), &mut info), 0);
        assert!(!info.is_null() && (*info).next.is_null());
        (provider.cleanup)();
    }
}

/// The other half of the next test: run in a process of its own.
#[test]
#[ignore = "panics on purpose"]
fn panics() {
    rustmx_fi::fi_prov_ini();
    panic!("the reason");
}

#[test]
fn a_panic_names_the_provider() {
    let mut c = Command::new(std::env::current_exe().expect("own path"));
    c.args(["--exact", "panics", "--ignored", "--nocapture"]);
    let shown = support::text(&support::run(&mut c, Duration::from_secs(20)));
    let ours = shown
        .lines()
        .find(|l| l.starts_with("libfabric provider rustmx: internal error at "))
        .unwrap_or_else(|| panic!("{shown}"));
    assert!(ours.contains("entry.rs:") && ours.contains("the reason") && ours.contains("aborting"), "{ours}");
}
