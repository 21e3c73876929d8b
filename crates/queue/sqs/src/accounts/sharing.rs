//! How the front ends of the same queues share the accounts' quotas: where there are others, each tells them once a
//! round what it gives and what it could use, through the store that has the queues ([`QuotaShares`]).

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Instant;
use tailwater_queue::{FrontReport, QueueError, QueueStore};
use tailwater_quotas::ShareUse;

use super::Accounts;
use crate::config::AccountConfig;

/// The numbers by which all front ends know what an account may have in a second: of requests, and of bytes.
fn takers(config: &AccountConfig) -> Option<(u64, u64)> {
    let account: u64 = config.id.parse().ok()?;
    let first = account.checked_mul(2)?;
    Some((first, first + 1))
}

impl Accounts {
    /// Shares the quotas with the other front ends of `queues`, if there can be any, from now until it is dropped. When
    /// it returns the others are known, and what it gives is an equal share.
    ///
    /// # Errors
    /// The store does not answer. Nothing is shared then.
    pub async fn share(self: &Arc<Self>, queues: &Arc<dyn QueueStore>) -> Result<(), QueueError> {
        if !self.exchange(&**queues).await? {
            return Ok(());
        }
        let (env, accounts, queues) = (self.env.clone(), Arc::downgrade(self), Arc::clone(queues));
        let sharing = async move {
            loop {
                let Some(round) = accounts.upgrade().map(|accounts| accounts.shares.read().round()) else {
                    return;
                };
                // Not all front ends at the same time.
                let spread_ms = u64::try_from(round.as_millis()).unwrap_or(u64::MAX) / 4;
                env.sleep(round - round / 4 + Duration::from_millis(env.random_below(spread_ms + 1))).await;
                let Some(accounts) = accounts.upgrade() else { return };
                match env.timeout(round, accounts.exchange(&*queues)).await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        tracing::warn!(%error, "the accounts' quotas are not shared at the moment")
                    }
                    None => tracing::warn!("the accounts' quotas are not shared: the store does not answer"),
                }
            }
        };
        let _ = self.sharing.set(self.env.spawn("sqs-shares", sharing));
        Ok(())
    }

    /// One round; `false` if nobody else can serve these queues.
    async fn exchange(&self, queues: &dyn QueueStore) -> Result<bool, QueueError> {
        let uses = self.uses();
        let report = {
            let mut shares = self.shares.write();
            let (number, value) = shares.begin(self.env.now(), uses);
            FrontReport { front: shares.front(), number, value: value.into() }
        };
        let Some(reports) = queues.exchange_reports(report).await? else { return Ok(false) };
        let reports = reports.iter().map(|report| (report.front, report.number, &report.value[..]));
        self.shares.write().end(self.env.now(), reports);
        Ok(true)
    }

    /// What all accounts with a quota have used since the last round.
    fn uses(&self) -> Vec<ShareUse> {
        let mut uses = Vec::new();
        for account in self.set().by_id.values() {
            let Some((requests, bytes)) = takers(&account.config) else { continue };
            let used = &account.used;
            for (taker, quota, bucket) in [
                (requests, account.config.requests_per_s, &used.requests),
                (bytes, account.config.bytes_per_s, &used.bytes),
            ] {
                if quota > 0 {
                    let (taken, is_refused) = bucket.lock().taken();
                    uses.push(ShareUse { taker, quota, taken, is_refused });
                }
            }
        }
        uses
    }

    /// What this front end gives of an account's requests and bytes in a second; 0 is any number.
    pub(super) fn shares(&self, config: &AccountConfig, now: Instant) -> (f64, f64) {
        let quotas = (config.requests_per_s, config.bytes_per_s);
        let Some((requests, bytes)) = takers(config) else { return (quotas.0 as f64, quotas.1 as f64) };
        let shares = self.shares.read();
        (shares.share(requests, quotas.0, now), shares.share(bytes, quotas.1, now))
    }

    /// Front ends that share the quotas at the moment, this one among them.
    pub fn front_ends(&self) -> u64 {
        self.shares.read().fronts()
    }
}

#[cfg(test)]
mod tests {
    use tailwater_env::Env;

    use super::*;
    use crate::accounts::tests::{accounts, bounded, who};

    /// What a store of several front ends does with their reports.
    type Board = std::collections::BTreeMap<u64, FrontReport>;

    /// A round of one of several front ends, through a board that all of them read.
    fn round(accounts: &Accounts, board: &mut Board, now: Instant) {
        let uses = accounts.uses();
        let mut shares = accounts.shares.write();
        let (number, value) = shares.begin(now, uses);
        let front = shares.front();
        board.insert(front, FrontReport { front, number, value: value.into() });
        shares.end(now, board.values().map(|report| (report.front, report.number, &report.value[..])));
    }

    #[tokio::test]
    async fn one_of_many_front_ends_gives_its_share_of_an_account_s_requests_and_the_only_one_all_of_them() {
        let admitted = |fronts: u64| {
            let accounts = accounts(bounded(&who().account, 4, 0));
            let mut board = Board::new();
            for front in 1..fronts {
                board
                    .insert(front, FrontReport { front, number: 1, value: vec![1, 0xa0, 0x0f, 0, 0].into() });
            }
            round(&accounts, &mut board, Env::real().now());
            assert_eq!(accounts.front_ends(), fronts);
            let admitted = (0..8).filter(|_| accounts.admit(&who(), 0).is_ok()).count();
            (admitted, accounts.check_quota("key of 111122223333").is_ok())
        };
        assert!(admitted(1).0 >= 4);
        // The next one comes in a quarter of an hour.
        assert_eq!(admitted(4_000), (1, false));
    }

    #[test]
    fn requests_and_bytes_of_each_account_are_apart() {
        let takers = |id: &str| takers(&bounded(id, 1, 0));
        assert_eq!(takers("000000000001"), Some((2, 3)));
        assert_eq!(takers("999999999999"), Some((1_999_999_999_998, 1_999_999_999_999)));
        assert_eq!(takers("none"), None);
    }
}
