//! `fi_prov_ini`: how libfabric finds us, and how we find it.
//!
//! Nothing is imported from libfabric (contract 2.5). What we use of it, its log and its parameter table, is looked up in the
//! copy that calls `fi_prov_ini`: the call stack is walked outwards, and the first object on it that has these functions is it.
//! The walk uses the unwind tables, which every compiler emits for x86-64 and aarch64; a return address would need assembler per
//! processor, and would find a wrapper instead of libfabric when one sits in between.
//!
//! Several copies of libfabric may load us into one process (each gets the same mapping): every one gets a provider structure of
//! its own to write to. Log and parameters belong to the first.
#![expect(unsafe_code)]
// UNSAFETY: exports a C symbol, walks the stack, looks up and casts C functions.

use crate::abi::fabric::version;
use crate::abi::prov::*;
use crate::log::FiLog;
use crate::{info, object, params};
use core::ffi::CStr;
use core::ptr::NonNull;
use libc::{c_char, c_int, c_void};
use parking_lot::Mutex;
use rustmx::log::tell;
use rustmx::{Config, Log, LogLevel, LogSubsystem, Profiles};
use std::sync::{Arc, Once, OnceLock};

/// Our version, as libfabric compares it.
pub(crate) const VERSION: u32 = version(number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")));

/// The newest libfabric whose headers the mirror was checked against. A client may ask for the version of the library it runs
/// with, and a provider that reports less is skipped (contract 0.2): we report the caller's if that is newer, as libfabric only
/// ever appends to its structures.
const CHECKED_AGAINST: u32 = version(2, 6);

const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(n) => n,
        Err(_) => panic!("a version number"),
    }
}

/// The functions of one libfabric, and the structure it knows us by. The library stays loaded: `find` holds a reference.
#[derive(Clone, Copy)]
pub(crate) struct Libfabric {
    pub(crate) provider: NonNull<fi_provider>,
    pub(crate) log_enabled: fi_log_enabled_fn,
    pub(crate) log: fi_log_fn,
    pub(crate) param_define: fi_param_define_fn,
    pub(crate) param_get: fi_param_get_fn,
}

// SAFETY: function pointers, and an address that libfabric synchronises the use of.
unsafe impl Send for Libfabric {}
// SAFETY: as above.
unsafe impl Sync for Libfabric {}

/// What is read once per process.
pub(crate) struct Start {
    pub(crate) config: Arc<Config>,
    pub(crate) log: Log,
    /// Looked for when the first endpoint is opened.
    pub(crate) profiles: Arc<Profiles>,
}

static START: OnceLock<Start> = OnceLock::new();

/// Configuration and log of this process.
pub(crate) fn start() -> &'static Start {
    // Objects can be opened only through a provider structure, so `fi_prov_ini` came first, except in our own tests.
    START.get_or_init(|| begin(None))
}

fn begin(libfabric: Option<Libfabric>) -> Start {
    let log = libfabric.map_or_else(Log::silent, |l| Log::new(Arc::new(FiLog::new(l))));
    let config = Arc::new(params::read(libfabric.as_ref(), &log));
    log.say(LogLevel::Info, LogSubsystem::Core, || {
        format!("rustmx {} loaded (API up to {}.{})", env!("CARGO_PKG_VERSION"), CHECKED_AGAINST >> 16, CHECKED_AGAINST & 0xffff)
    });
    Start { config, log, profiles: Arc::new(Profiles::new(|text| tell("rustmx", text))) }
}

/// Provider structures, by the base address of the libfabric that has them.
struct Registered(Vec<(usize, NonNull<fi_provider>)>);

// SAFETY: the structures are written by the libfabric they belong to; we only hand their addresses out.
unsafe impl Send for Registered {}

static REGISTERED: Mutex<Registered> = Mutex::new(Registered(Vec::new()));

/// The entry point. The structure lives in writable memory for the rest of the process: libfabric writes to `context`, and may
/// unload us early and load us again.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    report_panics();
    let caller = Caller::find();
    let base = caller.as_ref().map_or(0, |c| c.base);
    let mut registered = REGISTERED.lock();
    if let Some((_, known)) = registered.0.iter().find(|(b, _)| *b == base) {
        return known.as_ptr();
    }
    let provider = NonNull::from(Box::leak(Box::new(fi_provider {
        version: VERSION,
        fi_version: CHECKED_AGAINST.max(caller.as_ref().map_or(0, |c| c.version)),
        context: fi_context { internal: [core::ptr::null_mut(); 4] },
        name: c"rustmx".as_ptr(),
        getinfo: info::getinfo,
        fabric: object::fabric::open,
        cleanup,
    })));
    registered.0.push((base, provider));
    let libfabric = caller.map(|c| c.with(provider));
    if let Some(l) = &libfabric {
        params::define(l);
    }
    START.get_or_init(|| begin(libfabric));
    provider.as_ptr()
}

/// Called from libfabric's destructor: at exit, perhaps while other threads run, perhaps in a forked child, perhaps without
/// anything ever opened. There is nothing process-wide to undo: segments have no names, and each object cleans up at its close.
unsafe extern "C" fn cleanup() {}

/// A panic aborts the process (docs/adr/0003-panics.md); before that, say whose fault it is.
fn report_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|what| {
            let place = what.location().map_or_else(String::new, |l| format!(" at {}:{}", l.file(), l.line()));
            let payload = what.payload();
            let why = payload.downcast_ref::<&str>().copied();
            let why = why.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
            let text = format!("internal error{place}: {why}; this is a bug in rustmx, aborting");
            tell("libfabric provider rustmx", &text);
            // Not `start()`: the panic may have come out of it.
            if let Some(start) = START.get() {
                start.log.say(LogLevel::Warn, LogSubsystem::Core, || text);
            }
        }));
    });
}

/// The libfabric on the call stack.
struct Caller {
    base: usize,
    version: u32,
    log_enabled: fi_log_enabled_fn,
    log: fi_log_fn,
    param_define: fi_param_define_fn,
    param_get: fi_param_get_fn,
}

unsafe extern "C" {
    // In libgcc_s, which Rust's standard library links.
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, arg: *mut c_void) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

/// `_URC_NO_REASON`: go on. Anything else ends the walk.
const GO_ON: c_int = 0;
const STOP: c_int = 4;

impl Caller {
    fn find() -> Option<Caller> {
        extern "C" fn each(frame: *mut c_void, found: *mut c_void) -> c_int {
            // SAFETY: called by the walk below with a frame and the place it was given.
            let (ip, found) = unsafe { (_Unwind_GetIP(frame), &mut *found.cast::<Option<Caller>>()) };
            *found = Caller::at(ip);
            if found.is_some() { STOP } else { GO_ON }
        }
        let mut found: Option<Caller> = None;
        // SAFETY: the callback matches the declaration and does not unwind.
        unsafe { _Unwind_Backtrace(each, (&raw mut found).cast()) };
        found
    }

    /// The object that contains `ip`, if it is a libfabric.
    fn at(ip: usize) -> Option<Caller> {
        // A return address may lie just behind its object's last call; the outermost frame's may be 0.
        let call = ip.checked_sub(1)? as *const c_void;
        // SAFETY: dladdr fills the structure if it returns non-zero.
        let at = unsafe {
            let mut info: libc::Dl_info = core::mem::zeroed();
            (libc::dladdr(call, &mut info) != 0 && !info.dli_fname.is_null()).then_some(info)?
        };
        // SAFETY: a path from the loader. NOLOAD: an object that is mapped already gains a reference, kept on purpose.
        let handle = unsafe { libc::dlopen(at.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        if handle.is_null() {
            return None;
        }
        let found = Caller::in_object(handle, at.dli_fbase as usize);
        if found.is_none() {
            // SAFETY: the reference just taken.
            unsafe { libc::dlclose(handle) };
        }
        found
    }

    fn in_object(handle: *mut c_void, base: usize) -> Option<Caller> {
        // dlsym also searches what the object depends on, and every program that uses libfabric depends on it: only a symbol
        // inside the object itself makes it the one.
        let own = |name: &CStr| {
            // SAFETY: a live handle and a C string; dladdr fills the structure if it returns non-zero.
            unsafe {
                let p = libc::dlsym(handle, name.as_ptr().cast::<c_char>());
                let mut info: libc::Dl_info = core::mem::zeroed();
                let inside = !p.is_null() && libc::dladdr(p, &mut info) != 0 && info.dli_fbase as usize == base;
                inside.then_some(p)
            }
        };
        let (log_enabled, log) = (own(c"fi_log_enabled")?, own(c"fi_log")?);
        let (param_define, param_get) = (own(c"fi_param_define")?, own(c"fi_param_get")?);
        let fi_version = own(c"fi_version")?;
        // SAFETY: public functions of libfabric whose signatures never changed (contract 2.5).
        unsafe {
            use core::mem::transmute;
            Some(Caller {
                base,
                version: transmute::<*mut c_void, fi_version_fn>(fi_version)(),
                log_enabled: transmute::<*mut c_void, fi_log_enabled_fn>(log_enabled),
                log: transmute::<*mut c_void, fi_log_fn>(log),
                param_define: transmute::<*mut c_void, fi_param_define_fn>(param_define),
                param_get: transmute::<*mut c_void, fi_param_get_fn>(param_get),
            })
        }
    }

    fn with(self, provider: NonNull<fi_provider>) -> Libfabric {
        Libfabric {
            provider,
            log_enabled: self.log_enabled,
            log: self.log,
            param_define: self.param_define,
            param_get: self.param_get,
        }
    }
}
