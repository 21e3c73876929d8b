//! Changes of a queue's record, checked where they are made: on what there is then, whatever others changed meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_queue::{QueueRecord, QueueView};

use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::limits::RECORD_BYTES_MAX;

impl RequestContext<'_> {
    /// Makes a change of a queue's record, or none if that is refused, or the record would be too long.
    pub(super) async fn change(
        &self,
        queue: &QueueView,
        change: impl Fn(&mut QueueRecord) -> Result<(), ErrorRefusal> + Send + Sync + 'static,
    ) -> Result<(), ErrorRefusal> {
        let changed = move |record: &QueueRecord| {
            let mut changed = record.clone();
            change(&mut changed)?;
            check_record(&changed)?;
            Ok::<_, ErrorRefusal>(changed)
        };
        // What is refused now costs the store nothing.
        changed(&queue.record())?;
        let refused = Arc::new(Mutex::new(None));
        let told = Arc::clone(&refused);
        let make = move |record: &mut QueueRecord| {
            let made = changed(record).map(|changed| *record = changed);
            *told.lock() = made.err();
        };
        self.front.queues.update(queue, Box::new(make)).await?;
        let refused = refused.lock().take();
        refused.map_or(Ok(()), Err)
    }
}

/// Whether a record is as short as one may be: those that the store writes at once are written together, or not at all.
pub(super) fn check_record(record: &QueueRecord) -> Result<(), ErrorRefusal> {
    let bytes = serde_json::to_vec(record).map_or(usize::MAX, |json| json.len());
    match bytes <= RECORD_BYTES_MAX {
        true => Ok(()),
        false => Err(ErrorRefusal::new(
            Code::InvalidAttributeValue,
            format!(
                "Attributes and tags of a queue may have {RECORD_BYTES_MAX} bytes together, and not {bytes}."
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use tailwater_queue::Settings;

    use super::*;

    #[test]
    fn a_record_has_so_many_bytes_whatever_it_has_them_of() {
        let mut record = QueueRecord::new("000000000000", "q", Settings::default());
        check_record(&record).expect("it is short");
        for number in 0..30 {
            record.tags.insert(number.to_string(), "x".repeat(10_000));
        }
        assert_eq!(check_record(&record).expect_err("it is long").code, Code::InvalidAttributeValue);
    }
}
