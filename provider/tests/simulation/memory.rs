//! Memory of peers against plain bytes.
