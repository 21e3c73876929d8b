//! A queue as one would write it without a thought for time: a list that is searched.

use crate::ids::{Sequence, Token};
use crate::queue::{Counts, ReceiptError};

struct Listed {
    sequence: Sequence,
    sent_at: u64,
    visible_at: u64,
    group: Option<String>,
    token: Option<Token>,
}

pub(super) struct Model {
    fifo: bool,
    kept_ms: u64,
    messages: Vec<Listed>,
}

impl Model {
    pub(super) fn new(fifo: bool, kept_ms: u64) -> Self {
        Self { fifo, kept_ms, messages: Vec::new() }
    }

    pub(super) fn send(&mut self, sequence: Sequence, sent_at: u64, visible_at: u64, group: Option<String>) {
        self.messages.push(Listed { sequence, sent_at, visible_at, group, token: None });
    }

    fn expire(&mut self, now: u64) {
        let kept_ms = self.kept_ms;
        self.messages.retain(|message| message.sent_at + kept_ms > now);
    }

    /// The next message to be received, but for those of `taken`.
    fn next(&self, now: u64, taken: &[Sequence], groups: &[String]) -> Option<usize> {
        let is_candidate = |(at, message): &(usize, &Listed)| {
            if message.visible_at > now || taken.contains(&message.sequence) {
                return false;
            }
            let Some(group) = message.group.as_ref().filter(|_| self.fifo) else { return true };
            // Everything before it in its group was just taken, or there is nothing.
            self.messages[..*at]
                .iter()
                .filter(|before| before.group.as_ref() == Some(group))
                .all(|before| taken.contains(&before.sequence))
        };
        let candidates: Vec<(usize, &Listed)> =
            self.messages.iter().enumerate().filter(is_candidate).collect();
        // A FIFO queue goes on with the group that it has begun.
        let same = candidates.iter().find(|(_, message)| message.group.as_ref() == groups.last());
        if let Some((at, _)) = same.filter(|_| self.fifo && !groups.is_empty()) {
            return Some(*at);
        }
        let oldest = candidates.iter().min_by_key(|(_, message)| (message.visible_at, message.sequence));
        oldest.map(|(at, _)| *at)
    }

    pub(super) fn receive(
        &mut self,
        now: u64,
        count: usize,
        visibility_ms: u64,
        tokens: &[(Sequence, Token)],
    ) -> Vec<(Sequence, Token)> {
        self.expire(now);
        let (mut taken, mut groups) = (Vec::new(), Vec::new());
        while taken.len() < count
            && let Some(at) = self.next(now, &taken, &groups)
        {
            taken.push(self.messages[at].sequence);
            groups.extend(self.messages[at].group.clone());
        }
        let mut received = Vec::new();
        for sequence in taken {
            let token =
                tokens.iter().find(|(other, _)| *other == sequence).map_or(Token(0), |(_, token)| *token);
            let message = self.messages.iter_mut().find(|message| message.sequence == sequence);
            let message = message.expect("it was taken");
            (message.visible_at, message.token) = (now + visibility_ms, Some(token));
            received.push((sequence, token));
        }
        received
    }

    fn find(&mut self, sequence: Sequence) -> Option<&mut Listed> {
        self.messages.iter_mut().find(|message| message.sequence == sequence)
    }

    pub(super) fn check_delete(
        &mut self,
        sequence: Sequence,
        token: Token,
        now: u64,
    ) -> Result<(), ReceiptError> {
        self.expire(now);
        let fifo = self.fifo;
        match self.find(sequence) {
            Some(message) if fifo && (message.visible_at <= now || message.token != Some(token)) => {
                Err(ReceiptError::Expired)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_change(
        &mut self,
        sequence: Sequence,
        token: Token,
        now: u64,
    ) -> Result<(), ReceiptError> {
        self.expire(now);
        let fifo = self.fifo;
        match self.find(sequence) {
            Some(message) if message.token == Some(token) && (!fifo || message.visible_at > now) => Ok(()),
            Some(message) if message.token == Some(token) => Err(ReceiptError::NotInFlight),
            _ => Err(ReceiptError::Unavailable),
        }
    }

    pub(super) fn delete(&mut self, sequence: Sequence) {
        self.messages.retain(|message| message.sequence != sequence);
    }

    pub(super) fn change(&mut self, sequence: Sequence, visible_at: u64) {
        if let Some(message) = self.find(sequence) {
            message.visible_at = visible_at;
        }
    }

    pub(super) fn purge(&mut self, upto: Sequence) {
        self.messages.retain(|message| message.sequence > upto);
    }

    pub(super) fn counts(&mut self, now: u64) -> Counts {
        self.expire(now);
        let hidden = self.messages.iter().filter(|message| message.visible_at > now);
        let (in_flight, delayed): (Vec<_>, Vec<_>) = hidden.partition(|message| message.token.is_some());
        Counts {
            visible: (self.messages.len() - in_flight.len() - delayed.len()) as u64,
            in_flight: in_flight.len() as u64,
            delayed: delayed.len() as u64,
        }
    }

    pub(super) fn oldest_sent_at(&self) -> Option<u64> {
        self.messages.iter().map(|message| message.sent_at).min()
    }
}
