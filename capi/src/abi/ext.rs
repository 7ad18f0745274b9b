//! `include/rustmx/fi_ext_rustmx.h`: our own extension.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "the header documents the fields and constants")]

use super::endpoint::fid_ep;
use super::fabric::{c_enum, fi_addr_t, fid};
use libc::{c_char, c_int};

c_constants! { CONSTANTS:
    FI_RUSTMX_MSG: c_enum = 0;
    FI_RUSTMX_READ: c_enum = 1;
    FI_RUSTMX_WRITE: c_enum = 2;
    FI_RUSTMX_ATOMIC: c_enum = 3;
}

c_structs! {
    struct fi_rustmx_counter {
        name: *const c_char,
        value: u64,
    }

    struct fi_rustmx_plan {
        how: [c_char; 16],
        first: u64,
        last: u64,
        why: [c_char; 488],
    }

    struct fi_rustmx_ops_1 {
        size: usize,
        counters: unsafe extern "C" fn(*mut fid, *mut fi_rustmx_counter, *mut usize) -> c_int,
        plan: unsafe extern "C" fn(*mut fid_ep, fi_addr_t, c_enum, usize, *mut fi_rustmx_plan) -> c_int,
    }
}
