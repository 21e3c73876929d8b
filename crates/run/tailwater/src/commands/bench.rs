//! `tailwater bench` where the benches were left out of the build.

/// What a bench would be told.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _given: Vec<String>,
}

/// Says which build has them.
pub fn run(_: Args) -> anyhow::Result<()> {
    anyhow::bail!(
        "this build has no benches: `make dist` makes target/dist/tailwater, which has them, as has one of \
         `cargo build --release -p tailwater --features bench`"
    )
}
