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
            text.parse().with_context(|| format!("configuration file {} is no TOML", path.display()))?;
        Ok(Self { path: path.to_owned(), content })
    }
}

impl Provider for ConfigFile {
    fn metadata(&self) -> Metadata {
        Metadata::from("TOML file", self.path.as_path())
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        Serialized::defaults(&self.content).data()
    }
}
