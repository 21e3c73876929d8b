//! Random interleavings of appends, rolls, losses and reads, compared with what was appended. What happens is
//! decided by a seed, which a failure prints; when it happens is the machine's business.

use std::time::Duration;

use super::following::{World, reader_config, shard};
use super::in_runtime;
use crate::ReaderConfig;

/// A linear congruential generator: more is not needed to mix events.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Prints the seed if the test ends by a panic.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed was {}", self.0);
        }
    }
}

#[test]
fn whatever_happens_every_cursor_sees_what_was_appended() {
    for seed in 0..12 {
        in_runtime(|env| async move {
            let _seed = Seed(seed);
            let mut random = Random(seed);
            let window_bytes = [600, 5_000, 1 << 20][random.below(3) as usize];
            let config = ReaderConfig { window_bytes, catch_up_window_bytes: 2_000, ..reader_config() };
            let world = World::start(env, config).await;
            let shards = 1 + random.below(3) as u32;
            for number in 0..shards {
                world.append(shard(number), &[b"first"]);
            }
            let mut followers = Vec::new();
            for _ in 0..60 {
                let shard = shard(random.below(u64::from(shards)) as u32);
                match random.below(12) {
                    0..=4 => world.append_some(shard, 1 + random.below(20) as usize),
                    5 => world.roll(shard),
                    6 => {
                        let end = world.log.values(shard).len() as u64;
                        followers.push(world.follow(shard, random.below(end + 1)));
                    }
                    7 => {
                        let keep = random.below(followers.len() as u64 + 1) as usize;
                        followers.truncate(keep.max(1));
                    }
                    8 => world.data.set_gone(random.below(4) as usize),
                    9 => world.metadata.set_gone(random.below(4) as usize),
                    10 if random.below(2) == 0 => world.data.clear().await,
                    10 => world.metadata.clear().await,
                    _ => world.env.sleep(Duration::from_millis(random.below(5))).await,
                }
                world.log.set_available(random.below(8) > 0);
            }
            world.data.set_gone(0);
            world.metadata.set_gone(0);
            world.log.set_available(true);
            for number in 0..shards {
                world.append(shard(number), &[b"last"]);
            }
            world.assert_all_seen(&followers).await;
        });
    }
}
