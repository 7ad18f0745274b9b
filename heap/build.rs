//! Link arguments of `librustmx_heap.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Blocks of ours outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Our constructor first, so that our atfork handlers are the first to be registered: they then run last before a fork and
    // first after it (provider/docs/adr/0013-heap.md).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
}
