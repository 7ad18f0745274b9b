//! `rdma/providers/fi_prov.h` and `fi_log.h`: how a provider registers, and the functions of libfabric that we look up.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use super::fabric::{c_enum, fi_fabric_attr, fi_info, fid_fabric};
use libc::{c_char, c_int, c_void};

c_constants! { CONSTANTS:
    FI_LOG_WARN: c_enum = 0;
    FI_LOG_INFO: c_enum = 2;
    FI_LOG_DEBUG: c_enum = 3;
    FI_LOG_CORE: c_enum = 0;
    FI_LOG_FABRIC: c_enum = 1;
    FI_LOG_DOMAIN: c_enum = 2;
    FI_LOG_EP_CTRL: c_enum = 3;
    FI_LOG_EP_DATA: c_enum = 4;
    FI_LOG_AV: c_enum = 5;
    FI_LOG_CQ: c_enum = 6;
    FI_LOG_EQ: c_enum = 7;
    FI_LOG_MR: c_enum = 8;
    FI_LOG_CNTR: c_enum = 9;
}

c_structs! {
    struct fi_context {
        internal: [*mut c_void; 4],
    }

    /// What `fi_prov_ini` returns. libfabric writes to `context`.
    struct fi_provider {
        version: u32,
        fi_version: u32,
        context: fi_context,
        name: *const c_char,
        getinfo: unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int,
        fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
        cleanup: unsafe extern "C" fn(),
    }
}

pub type fi_log_enabled_fn = unsafe extern "C" fn(*const fi_provider, c_enum, c_enum) -> c_int;
pub type fi_log_fn = unsafe extern "C" fn(*const fi_provider, c_enum, c_enum, *const c_char, c_int, *const c_char, ...);
pub type fi_param_define_fn = unsafe extern "C" fn(*const fi_provider, *const c_char, c_enum, *const c_char, ...) -> c_int;
pub type fi_param_get_fn = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;
pub type fi_version_fn = unsafe extern "C" fn() -> u32;
