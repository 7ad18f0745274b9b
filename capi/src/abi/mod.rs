//! Our own `repr(C)` mirror of the parts of `rdma/*.h` that cross the border: one file per header, no logic.
//!
//! The names are those of the C headers, so that a reader can search for them in both places. Structures have the size of
//! libfabric 2.6, which only ever appended to them since 1.17 (docs/adr/0001-c-types.md); whoever *reads* a structure that a
//! client allocated must gate the appended fields on the API version (contract 2.3).
//!
//! Each structure and constant is also listed as data ([`structs`], [`constants`]): `tests/abi_layout.rs` asks a C compiler about
//! every one of them.

macro_rules! c_structs {
    ($( $(#[$meta:meta])* struct $name:ident { $( $field:ident : $ty:ty ),* $(,)? } )*) => {
        $( $(#[$meta])* #[repr(C)] pub struct $name { $( pub $field: $ty, )* } )*

        /// Layout of each structure in this file.
        pub static STRUCTS: &[super::StructLayout] = &[ $( super::StructLayout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[ $( super::FieldLayout {
                name: stringify!($field),
                offset: core::mem::offset_of!($name, $field),
                size: size_of::<$ty>(),
            } ),* ],
        } ),* ];
    };
}

macro_rules! c_constants {
    ($list:ident: $( $name:ident : $ty:ty = $value:expr ; )*) => {
        $( pub const $name: $ty = $value; )*

        /// Name and value of each constant in this group.
        pub static $list: &[(&str, u64)] = &[ $( (stringify!($name), $name as u64) ),* ];
    };
}

pub mod atomic;
mod check;
pub mod cm;
pub mod domain;
pub mod endpoint;
pub mod eq;
pub mod errno;
pub mod ext;
pub mod fabric;
pub mod prov;
pub mod rma;
pub mod tagged;
pub mod trigger;

/// One field as this crate lays it out.
pub struct FieldLayout {
    /// C name (a leading `r#` belongs to Rust).
    pub name: &'static str,
    /// Bytes from the start.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// One structure as this crate lays it out.
pub struct StructLayout {
    /// C tag.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Every field.
    pub fields: &'static [FieldLayout],
}

/// All mirrored structures.
pub fn structs() -> impl Iterator<Item = &'static StructLayout> {
    [
        fabric::STRUCTS,
        domain::STRUCTS,
        endpoint::STRUCTS,
        eq::STRUCTS,
        cm::STRUCTS,
        tagged::STRUCTS,
        rma::STRUCTS,
        atomic::STRUCTS,
        trigger::STRUCTS,
        prov::STRUCTS,
        ext::STRUCTS,
    ]
    .into_iter()
    .flatten()
}

/// All mirrored constants that every header from 1.17 on has.
pub fn constants() -> impl Iterator<Item = &'static (&'static str, u64)> {
    [
        fabric::CONSTANTS,
        atomic::CONSTANTS,
        trigger::CONSTANTS,
        domain::CONSTANTS,
        endpoint::CONSTANTS,
        eq::CONSTANTS,
        errno::CONSTANTS,
        prov::CONSTANTS,
        ext::CONSTANTS,
    ]
    .into_iter()
    .flatten()
}
