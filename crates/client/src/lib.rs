//! What an application links: producer, one-sided consumer.
