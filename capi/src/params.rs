//! The tunables: [`PARAMS`] registered with libfabric (so that `fi_info -e` lists them), their values read, and every value or
//! name that cannot be meant reported. A mistyped variable that is silently ignored costs its user a day.
#![expect(unsafe_code)]
// UNSAFETY: calls C functions through pointers and reads a C string.

use crate::abi::fabric::FI_PARAM_STRING;
use crate::entry::Libfabric;
use rustmx::config::echo::escaped;
use rustmx::config::{Config, ENV_PREFIX, PARAMS, Param, unknown_variable};
use rustmx::log::tell;
use rustmx::sys::processor;
use rustmx::{Log, LogLevel, LogSubsystem};
use std::ffi::{CStr, CString};

/// Registers every parameter with one libfabric.
pub(crate) fn define(libfabric: &Libfabric) {
    // Asked once: a virtual machine's host answers each time.
    let processor = processor::here();
    for p in PARAMS {
        let default = Some(p.default(processor)).filter(|d| !d.is_empty()).unwrap_or("nothing".into());
        let help = format!("{} ({}; default: {default})", p.help.trim_end_matches('.'), p.range());
        let (Ok(name), Ok(help)) = (CString::new(p.name), CString::new(help)) else { continue };
        // Strings throughout: libfabric's own parsers know no units.
        // SAFETY: libfabric copies both texts; the format is "%s".
        unsafe {
            let provider = libfabric.provider.as_ptr();
            (libfabric.param_define)(provider, name.as_ptr(), FI_PARAM_STRING, c"%s".as_ptr(), help.as_ptr());
        }
    }
}

/// A value set by the user: libfabric's view (environment or its configuration file), else the environment's. libfabric writes values that it
/// is asked for into its log: secrets it is not asked for.
fn value(libfabric: Option<&Libfabric>, p: &Param) -> Option<String> {
    let asked = libfabric.filter(|_| !p.is_secret()).and_then(|l| {
        let name = CString::new(p.name).ok()?;
        let mut text: *const libc::c_char = core::ptr::null();
        // SAFETY: the parameter was defined as a string, so a pointer to a C string is stored.
        let found = unsafe {
            let place = (&raw mut text).cast();
            (l.param_get)(l.provider.as_ptr(), name.as_ptr(), place) == 0 && !text.is_null()
        };
        // SAFETY: a C string that libfabric or the environment holds.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    });
    asked.or_else(|| std::env::var_os(p.env()).map(|v| v.to_string_lossy().into_owned()))
}

/// Reads every parameter. Complaints go to the log and, unless the log shows them, on one line to standard error.
pub(crate) fn read(libfabric: Option<&Libfabric>, log: &Log) -> Config {
    let mut config = Config::on(processor::here());
    let mut complaints = Vec::new();
    for p in PARAMS {
        if let Some(text) = value(libfabric, p)
            && let Err(complaint) = p.parse_into(&mut config, &text)
        {
            complaints.push(complaint);
        }
    }
    complaints.extend(rustmx::select::complaint(&config));
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    complaints.extend(names.filter(|n| n.starts_with(ENV_PREFIX)).filter_map(|n| unknown_variable(&n)));
    let mut shown = false;
    for c in &complaints {
        log.say(LogLevel::Warn, LogSubsystem::Core, || {
            shown = true;
            c.clone()
        });
    }
    if !shown && !complaints.is_empty() {
        tell("rustmx", &complaints.join("; "));
    }
    for p in PARAMS.iter().filter(|p| p.is_set(&config)) {
        log.say(LogLevel::Info, LogSubsystem::Core, || format!("{}={}", p.env(), escaped(&p.value(&config))));
    }
    config
}
