//! The holder's end of a lease.

use tokio::sync::watch;

/// A key that is there as long as this lives; see [`crate::Meta::lease`]. It renews itself. Dropping it removes
/// the key.
#[must_use = "dropping a lease gives it up"]
pub struct Lease {
    key: String,
    version: u64,
    lost: watch::Receiver<bool>,
    release: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Lease {
    /// A lease on `key`; `lost` turns true, or its sender goes away, when the lease ends without the holder's
    /// doing. `release` gives it up. For whoever implements [`crate::Meta`].
    pub fn new(
        key: String,
        version: u64,
        lost: watch::Receiver<bool>,
        release: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self { key, version, lost, release: Some(Box::new(release)) }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The key's version while the lease lives.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether it is known to have ended. The holder may learn of it late: what must not happen without the
    /// lease has to be a commit that checks the key.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow() || self.lost.has_changed().is_err()
    }

    /// Completes when the lease has ended.
    pub async fn lost(&self) {
        // An error says that the store is gone, and the lease with it.
        let _ = self.lost.clone().wait_for(|lost| *lost).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({:?}, version {}, lost: {})", self.key, self.version, self.is_lost())
    }
}
