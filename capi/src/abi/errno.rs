//! `rdma/fi_errno.h`: error numbers, as positive values. Those below 256 are the system's.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "libfabric's man pages document the fields and constants")]

use libc::c_int;

c_constants! { CONSTANTS:
    FI_ENOENT: c_int = libc::ENOENT;
    FI_EAGAIN: c_int = libc::EAGAIN;
    FI_ENOMEM: c_int = libc::ENOMEM;
    FI_EACCES: c_int = libc::EACCES;
    FI_EFAULT: c_int = libc::EFAULT;
    FI_EKEYREJECTED: c_int = libc::EKEYREJECTED;
    FI_EBUSY: c_int = libc::EBUSY;
    FI_EINVAL: c_int = libc::EINVAL;
    FI_EIO: c_int = libc::EIO;
    FI_ENOSYS: c_int = libc::ENOSYS;
    FI_ENOMSG: c_int = libc::ENOMSG;
    FI_ENODATA: c_int = libc::ENODATA;
    FI_EMSGSIZE: c_int = libc::EMSGSIZE;
    FI_ENOPROTOOPT: c_int = libc::ENOPROTOOPT;
    FI_EOPNOTSUPP: c_int = libc::EOPNOTSUPP;
    FI_EADDRINUSE: c_int = libc::EADDRINUSE;
    FI_EADDRNOTAVAIL: c_int = libc::EADDRNOTAVAIL;
    FI_ECONNABORTED: c_int = libc::ECONNABORTED;
    FI_ECONNRESET: c_int = libc::ECONNRESET;
    FI_ECONNREFUSED: c_int = libc::ECONNREFUSED;
    FI_ETIMEDOUT: c_int = libc::ETIMEDOUT;
    FI_EHOSTDOWN: c_int = libc::EHOSTDOWN;
    FI_EHOSTUNREACH: c_int = libc::EHOSTUNREACH;
    FI_EREMOTEIO: c_int = libc::EREMOTEIO;
    FI_ECANCELED: c_int = libc::ECANCELED;
    FI_ETOOSMALL: c_int = 257;
    FI_EOPBADSTATE: c_int = 258;
    FI_EAVAIL: c_int = 259;
    FI_EBADFLAGS: c_int = 260;
    FI_ENOEQ: c_int = 261;
    FI_EDOMAIN: c_int = 262;
    FI_ENOCQ: c_int = 263;
    FI_ETRUNC: c_int = 265;
    FI_ENOKEY: c_int = 266;
    FI_ENOAV: c_int = 267;
    FI_EOVERRUN: c_int = 268;
}
