//! Compiles what is in C, where a feature asks for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "ofi")]
    {
        println!("cargo::rerun-if-changed=src/fabric/shim.c");
        let mut build = cc::Build::new();
        build.file("src/fabric/shim.c").warnings(true).extra_warnings(true);
        // Headers only: the library is loaded where it is used.
        if let Err(error) = build.try_compile("tailwater_rma_fabric") {
            eprintln!(
                "The feature ofi needs a C compiler and libfabric's headers: sudo apt-get install gcc libfabric-dev\n{error}"
            );
            std::process::exit(1);
        }
    }
}
