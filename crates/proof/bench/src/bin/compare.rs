//! Tailwater beside its peers, in one run: `make bench-compare`, or `target/dist/compare --help`.

fn main() -> anyhow::Result<()> {
    tailwater_bench::compare::main()
}
