//! Commands that were left out of the build.

/// What such a command would be told.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _given: Vec<String>,
}

/// Says which build has it.
pub fn run(what: &str, feature: &str) -> anyhow::Result<()> {
    anyhow::bail!(
        "this build has no {what}: `make dist` makes target/dist/tailwater, which has everything; \
         `cargo build --release -p tailwater --features {feature}` makes one that has this"
    )
}
