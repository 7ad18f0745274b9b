//! Link arguments of `librustmx_fi.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // libfabric calls dlclose on us at exit and in error paths, while thread-local destructors and atfork handlers of this
    // object may still be due: stay mapped (contract 1.2).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // libfabric loads us RTLD_NOW | RTLD_LOCAL: a symbol nobody defines must fail here, not there (contract 2.5).
    // Under a sanitizer the program brings the runtime; the library is not what is tested then.
    if std::env::var_os("CARGO_CFG_SANITIZE").is_none() {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    }
}
