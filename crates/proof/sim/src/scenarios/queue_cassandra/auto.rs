//! Whether `K = auto` finds the order hint that it is to find: duplicates at or under the target, and out of order no
//! more than with the smallest fixed hint that meets it.
//!
//! The world of [`super::order`]: receivers at a front end each, three with even seeds and two with odd ones, who work
//! on what they received, over a model of Cassandra where nothing fails. First with `auto`, counted when it has
//! learned; then with one fixed hint after the other, until one of them meets the target.
//!
//! # What chance is allowed for
//!
//! A fixed hint meets the target if what is counted does: that is what "of those tried" says. Of `auto` two things are
//! by chance: how many duplicates there are at some K, by the root of how many are expected; and K itself, as each
//! front end knows the rate from the dozen duplicates of its last 1,024 looks ([`SPREAD`]), and K hardly changes while
//! so few are counted. Both together are the standard error, and three of them are allowed beyond the target. The share
//! that is out of order follows K's logarithm ([`DISORDER`]), so three standard errors of the mean K are allowed there,
//! too.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_queue::limits::AUTO_TARGET_PERMILLE;
use tailwater_queue::{OrderHint, QueueError};

use super::order::{Fronts, OrderCounts, in_world};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::world::World;

/// Receives after which `auto` knows where it is.
const LEARNING: u64 = 4_000;
/// Receives that are counted, of `auto` and of each fixed hint.
const COUNTED: u64 = 4_000;
/// More messages than are received: at the end of a queue there are fewer than K to choose from.
const LEFT: u64 = 100;
/// The fixed hints that are tried, each twice as large as the one before: so many are counted that chance does not
/// choose among them.
const HINTS: [u32; 4] = [6, 12, 25, 50];
const TARGET: f64 = AUTO_TARGET_PERMILLE as f64 / 1_000.0;
/// Standard deviation of a front end's K, as a part of it.
const SPREAD: f64 = 0.28;
/// How much the share that is out of order grows with the logarithm of K. Where duplicates are counted by both of their
/// receivers K is twice as large, which is more than what is allowed for.
const DISORDER: f64 = 0.11;

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let receivers = [3, 2][(world.seed() % 2) as usize];
    in_world(world, move |env, cluster, seed| async move {
        let fronts = Fronts::open(env, &cluster, receivers, plant, seed).await?;
        compare(&fronts, receivers).await
    })?
}

async fn compare(fronts: &Fronts, receivers: usize) -> Result<Result<Report, Violation>, QueueError> {
    let expected = TARGET * COUNTED as f64;
    let error = (1.0 / expected + SPREAD.powi(2) / receivers as f64).sqrt();
    let most = (expected * (1.0 + 3.0 * error)) as u64;
    let auto = count(fronts, OrderHint::Auto, LEARNING, most).await?;
    let checked = ensure(auto.duplicates <= most, || {
        let (duplicates, received) = (auto.duplicates, auto.received);
        format!(
            "{duplicates} of {received} receives with K = auto were duplicates, of {COUNTED} {most} may be"
        )
    });
    if let Err(violation) = checked {
        return Ok(Err(violation));
    }
    for k in HINTS {
        let fixed = count(fronts, OrderHint::K(k), 0, expected as u64).await?;
        if fixed.duplicates > expected as u64 {
            continue;
        }
        let (of_auto, of_fixed) = (disorder(&auto), disorder(&fixed));
        let by_chance = DISORDER * 3.0 * SPREAD / (receivers as f64).sqrt();
        let checked = ensure(of_auto <= of_fixed + by_chance, || {
            format!(
                "with K = auto a share of {of_auto:.3} is out of order, and {of_fixed:.3} with K = {k}, which meets the target"
            )
        });
        let mut report = Report::default();
        report.count("receivers", receivers as u64);
        report.count("K", u64::from(k));
        report.count("duplicates", auto.duplicates);
        report.count("out of order", auto.out_of_order());
        report.count("duplicates with K", fixed.duplicates);
        report.count("out of order with K", fixed.out_of_order());
        return Ok(checked.map(|()| report));
    }
    Ok(Err(Violation::new("none of the fixed hints meets the target")))
}

/// What is received with a hint after the first `before` receives; less than [`COUNTED`] if there were more than so
/// many duplicates.
async fn count(
    fronts: &Fronts,
    hint: OrderHint,
    before: u64,
    duplicates_max: u64,
) -> Result<OrderCounts, QueueError> {
    let counted = Arc::new(Mutex::new((0, OrderCounts::default())));
    let note = {
        let counted = Arc::clone(&counted);
        move |got| {
            let (noted, counted) = &mut *counted.lock();
            if counted.received == COUNTED || counted.duplicates > duplicates_max {
                return ControlFlow::Break(());
            }
            *noted += 1;
            counted.note(got, *noted > before);
            ControlFlow::Continue(())
        }
    };
    fronts.receive(hint, before + COUNTED + LEFT, note).await?;
    let counted = std::mem::take(&mut counted.lock().1);
    Ok(counted)
}

/// The share of messages that came out of order.
fn disorder(counted: &OrderCounts) -> f64 {
    counted.out_of_order() as f64 / (counted.received - counted.duplicates).max(1) as f64
}
