//! A configuration file, as one of the layers of a configuration.

use std::path::{Path, PathBuf};

use anyhow::Context;
use figment::providers::Serialized;
use figment::value::{Dict, Map};
use figment::{Metadata, Profile, Provider};

/// A file in TOML. Errors in what it says name it, and the key.
pub(super) struct ConfigFile {
    path: PathBuf,
    content: toml::Table,
}

impl ConfigFile {
    /// # Errors
    /// A file that does not exist or can't be read, and where it is no TOML.
    #[allow(clippy::disallowed_methods)] // Its user's file, before there is any world.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        anyhow::ensure!(path.is_file(), "configuration file {} does not exist", path.display());
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("configuration file {} can't be read", path.display()))?;
        let content =
            parse_toml(&text).with_context(|| format!("configuration file {} is no TOML", path.display()))?;
        Ok(Self { path: path.to_owned(), content })
    }
}

/// What a file in TOML says.
///
/// # Errors
/// The first line that is no TOML, by its number: it may have a secret in it, so it is not shown.
pub fn parse_toml(text: &str) -> anyhow::Result<toml::Table> {
    text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        anyhow::anyhow!("line {line}: {}", error.message())
    })
}

impl Provider for ConfigFile {
    fn metadata(&self) -> Metadata {
        Metadata::from("TOML file", self.path.as_path())
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        Serialized::defaults(&self.content).data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_toml_is_told_by_its_number_and_is_not_shown() {
        for text in [
            "a = 1\nsecret = \"hidden\n",
            "a = 1\nsecret = hidden\nb = 2\n",
            "a = 1\nsecret = \"x\" hidden\n",
        ] {
            let error = parse_toml(text).expect_err(text).to_string();
            assert!(error.starts_with("line 2: ") && !error.contains("hidden"), "{error}");
        }
    }
}
