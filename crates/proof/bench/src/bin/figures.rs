//! Makes docs/benchmarks.md, docs/figures and docs/img/figures from bench/results: `make figures`.

fn main() -> anyhow::Result<()> {
    tailwater_bench::figures::main()
}
