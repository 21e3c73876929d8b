//! The targets as a program. Built with `--cfg fuzzing` it is libFuzzer's, for the target that `TAILWATER_FUZZ_TARGET`
//! names (`.ci/fuzz`). Built otherwise it lists them, hands their inputs out and takes them back, and runs single ones.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod fuzzing {
    use std::sync::OnceLock;

    use tailwater_fuzz::{FuzzTarget, find};

    static TARGET: OnceLock<FuzzTarget> = OnceLock::new();

    libfuzzer_sys::fuzz_target!(|data: &[u8]| {
        let target = TARGET.get_or_init(|| {
            let name = std::env::var("TAILWATER_FUZZ_TARGET").unwrap_or_default();
            find(&name).unwrap_or_else(|| panic!("TAILWATER_FUZZ_TARGET is {name:?}, which is no target"))
        });
        target.check(data);
    });
}

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match commands::run(&arguments) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(fuzzing))]
#[allow(clippy::disallowed_methods)] // it reads and writes files that it is told
mod commands {
    use std::path::Path;

    use tailwater_fuzz::corpus::{files, inputs, pack, packed};
    use tailwater_fuzz::{FuzzTarget, find, targets};

    const USAGE: &str = "\
tailwater-fuzz list                  the targets
tailwater-fuzz unpack TARGET DIR     its seeds, corpus and findings as files in DIR
tailwater-fuzz pack TARGET DIR       the files in DIR become its corpus
tailwater-fuzz run TARGET FILE...    runs inputs";

    pub(super) fn run(arguments: &[&str]) -> Result<(), String> {
        match arguments {
            ["list"] => {
                targets().iter().for_each(|target| println!("{}", target.name));
                Ok(())
            }
            ["unpack", name, dir] => unpack(&known(name)?, Path::new(dir)),
            ["pack", name, dir] => {
                let inputs: Vec<Vec<u8>> =
                    files(Path::new(dir)).into_iter().map(|(_, input)| input).collect();
                write(&packed(&known(name)?), &pack(&inputs))
            }
            ["run", name, paths @ ..] if !paths.is_empty() => {
                let target = known(name)?;
                for path in paths {
                    target.check(&std::fs::read(path).map_err(|error| format!("{path}: {error}"))?);
                }
                Ok(())
            }
            _ => Err(USAGE.to_owned()),
        }
    }

    fn known(name: &str) -> Result<FuzzTarget, String> {
        find(name).ok_or_else(|| format!("there is no target {name}: see tailwater-fuzz list"))
    }

    fn unpack(target: &FuzzTarget, dir: &Path) -> Result<(), String> {
        std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        inputs(target)
            .iter()
            .enumerate()
            .try_for_each(|(at, input)| write(&dir.join(format!("{at:05}")), input))
    }

    fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
        std::fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
    }
}
