//! Endpoints that reach each other by TCP over the loopback interface, and what may happen to them there that shared memory spares them.
//!
//! | file | what it is |
//! |---|---|
//! | `strangers.rs` | whoever connects and is no rustmx: scanners, HTTP, noise, lying hellos, two thousand that say nothing |
//! | `liars.rs` | a sound hello, and then frames that no rustmx writes |
//! | `keys.rs` | who has not the job's key, and who listens or alters what is said |
//! | `many.rs` | a process with many peers |
//! | `cost.rs` | what a peer costs in memory |
//! | `crossing.rs` | both sides call at the same moment |
//! | `breaks.rs` | the first connection of a pair breaks under all that waits (`waits.rs`) |
//! | `in_step.rs` | many that call one listener: not at the same moments |
//! | `lanes.rs` | long messages by several connections, and who lies there |
//! | `away.rs` | programs that leave something behind and do not call for a moment |
//! | `flow.rs` | tiny socket buffers, much both ways, a reader that sleeps |
//! | `guesses.rs` | bytes that were guessed to belong elsewhere, by hand |
//! | `zerocopy.rs` | long messages that the kernel does not copy: their memory changes as soon as it may |
//! | `refusals.rs` | the same where the kernel refuses it: limits of locked memory, no io_uring |
//! | `silence.rs` | a peer that is stopped and not gone |
//! | `hosts.rs` | peers on other hosts (of `ci/netlab.sh`, where there is one), of whatever family and with whatever cards |
//! | `hosts/cut_off.rs` | a host that vanishes, whatever waits for it, also in the middle of first contact |
//! | `hosts/flows.rs` | long messages between such hosts: by several connections where each is limited, without a copy where nothing is gained |
//! | `hosts/ifaces.rs` | an interface chosen by name, reached by both families |
//! | `hosts/laboratory.rs` | that laboratory, for one test at a time |
//! | `hosts/nat.rs` | containers behind NAT, on hosts of their own and on one |
//! | `hosts/rare_questions.rs` | kernels that ask a peer without room seldom: its host is pinged, and called |
//! | `addresses.rs` | several addresses for one endpoint: nobody's, somebody else's, silent ones |
//! | `descriptors.rs` | a process that may have few files open |
//! | `shortage.rs` | descriptors, memory and whatever else there may be none of: what is said |
//! | `one_port.rs` | endpoints of a process that have one port: calls find theirs, whoever looks, sleeps, computes or closes |
//! | `own_port.rs` | calls from the port that a process listens at |
//! | `places.rs` | which ports and interfaces are used, and what is said if there is none; IPv6 |
//!
//! What endpoints do for each other whatever the way is in the other test programs, which `RUSTMX_TEST_NETWORK=1` sends over the network.

mod addresses;
mod away;
mod breaks;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod crossing;
mod deaf;
mod descriptors;
#[path = "../lend/filter.rs"]
#[allow(dead_code, reason = "the tests of lending use the rest")]
mod filter;
mod flow;
mod guesses;
mod hosts;
mod in_step;
mod keys;
mod lanes;
mod liars;
mod many;
mod one_port;
mod own_port;
mod places;
mod refusals;
mod scene;
mod shortage;
mod silence;
mod strangers;
mod waits;
mod zerocopy;
