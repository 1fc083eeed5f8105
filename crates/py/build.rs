//! Refuses Windows in one line, before any dependency fails there in many.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_WINDOWS").is_some() {
        println!("cargo::error=thinwire does not run on Windows itself: install it in WSL2");
    }
}
