//! That rights changed, as those are told who serve what goes on for long.

use tokio::sync::watch;

/// Rings when rights change.
#[derive(Debug, Default)]
pub struct RightsBell(watch::Sender<()>);

/// Hears it.
#[derive(Clone, Debug)]
pub struct RightsChanges(Option<watch::Receiver<()>>);

impl RightsBell {
    /// Has everybody who hears it ask again.
    pub fn ring(&self) {
        self.0.send_replace(());
    }

    /// Hears the rings from now on.
    pub fn changes(&self) -> RightsChanges {
        RightsChanges(Some(self.0.subscribe()))
    }
}

impl RightsChanges {
    /// Hears nothing: rights that never change.
    pub fn never() -> Self {
        Self(None)
    }

    /// Whether rights may change.
    pub fn may_come(&self) -> bool {
        self.0.is_some()
    }

    /// Completes when rights changed since this was made, or since it last completed. Many changes at once are one.
    ///
    /// # Cancel safety
    /// No change is missed.
    pub async fn changed(&mut self) {
        if let Some(changes) = &mut self.0
            && changes.changed().await.is_ok()
        {
            return;
        }
        // Who could change them is gone.
        std::future::pending().await
    }
}
