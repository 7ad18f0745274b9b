//! Our log goes to libfabric's (`FI_LOG_LEVEL`, `FI_LOG_PROV`), through the functions that `entry` found in the libfabric that
//! loaded us. Without them it is silent.
#![expect(unsafe_code)]
// UNSAFETY: calls C functions through pointers.

use crate::abi::fabric::c_enum;
use crate::abi::prov::*;
use crate::entry::Libfabric;
use rustmx::{LogLevel, LogSink, LogSubsystem};
use std::ffi::CString;

/// Writes to one libfabric.
pub(crate) struct FiLog {
    libfabric: Libfabric,
}

impl FiLog {
    pub(crate) fn new(libfabric: Libfabric) -> FiLog {
        FiLog { libfabric }
    }
}

fn level(level: LogLevel) -> c_enum {
    match level {
        LogLevel::Warn => FI_LOG_WARN,
        LogLevel::Info => FI_LOG_INFO,
        LogLevel::Debug => FI_LOG_DEBUG,
    }
}

fn subsystem(subsystem: LogSubsystem) -> c_enum {
    match subsystem {
        LogSubsystem::Core => FI_LOG_CORE,
        LogSubsystem::Fabric => FI_LOG_FABRIC,
        LogSubsystem::Domain => FI_LOG_DOMAIN,
        LogSubsystem::EpCtrl => FI_LOG_EP_CTRL,
        LogSubsystem::EpData => FI_LOG_EP_DATA,
        LogSubsystem::Av => FI_LOG_AV,
        LogSubsystem::Cq => FI_LOG_CQ,
        LogSubsystem::Eq => FI_LOG_EQ,
        LogSubsystem::Mr => FI_LOG_MR,
        LogSubsystem::Cntr => FI_LOG_CNTR,
    }
}

impl LogSink for FiLog {
    fn enabled(&self, l: LogLevel, s: LogSubsystem) -> bool {
        // SAFETY: libfabric's own function, with the provider it knows (both outlive us, see `Libfabric`).
        unsafe { (self.libfabric.log_enabled)(self.libfabric.provider.as_ptr(), level(l), subsystem(s)) != 0 }
    }

    fn write(&self, l: LogLevel, s: LogSubsystem, text: &str) {
        // A NUL inside would be a bug of the sentence; it is cut there.
        let text = CString::new(text.split('\0').next().unwrap_or("")).unwrap_or_default();
        // SAFETY: no pointer is kept across the call; errno is the client's, and fi_log may change it.
        unsafe {
            let saved = *libc::__errno_location();
            (self.libfabric.log)(
                self.libfabric.provider.as_ptr(),
                level(l),
                subsystem(s),
                c"rustmx".as_ptr(),
                0,
                c"%s\n".as_ptr(),
                text.as_ptr(),
            );
            *libc::__errno_location() = saved;
        }
    }
}

/// Says something that the engine does not.
pub(crate) fn info(s: LogSubsystem, text: impl FnOnce() -> String) {
    crate::entry::start().log.say(LogLevel::Info, s, text);
}
