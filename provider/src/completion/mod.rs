//! What the application gets to know: completion queues ([`cq`]) and counters ([`counter`]).

pub mod counter;
pub mod cq;
pub mod waiter;
