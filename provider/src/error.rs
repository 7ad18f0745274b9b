//! The one error type of the engine.
//!
//! Each variant says what happened and, where a user can act, what to do. `capi/src/boundary.rs`
//! maps variants to libfabric's error numbers and nothing else does.

use thiserror::Error;

/// Why an operation was refused or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// No room right now: read completions, then try again.
    #[error("no room at the moment; read completions and try again")]
    Again,
    /// No message matches (peek, claim).
    #[error("no message matches")]
    NoMessage,
    /// The receive was cancelled by the application.
    #[error("cancelled")]
    Cancelled,
    /// The message was longer than the buffer posted for it.
    #[error("the message is longer than the buffer posted for it")]
    Truncated,
    /// The address handle names no entry of the bound address vector.
    #[error("no such address in the address vector; insert it with fi_av_insert first")]
    UnknownAddress,
    /// Nothing listens at the peer's address.
    #[error("nothing listens at the peer's address: it exited, or runs in another network namespace")]
    Refused,
    /// The peer is on another host, to which there is no way.
    #[error("there is no way to the peer: no route to its address, a firewall, or FI_RUSTMX_TCP=no on one side")]
    Unreachable,
    /// First contact did not succeed in time.
    #[error("first contact timed out; did the peer start? (FI_RUSTMX_CONNECT_TIMEOUT sets the limit)")]
    TimedOut,
    /// The peer's process died or closed its endpoint while the operation waited for it.
    #[error("the peer's process ended or closed its endpoint")]
    PeerGone,
    /// The peer's host does not answer any more.
    #[error(
        "the peer's host does not answer any more: it is down, or the network between is (FI_RUSTMX_PEER_TIMEOUT sets how long that may last)"
    )]
    Silent,
    /// The peer wrote something into shared memory that no rustmx writes; it was disconnected.
    #[error("the peer wrote garbage into its ring and was disconnected")]
    Corrupt,
    /// The peer runs as another user.
    #[error("the peer runs as another user; rustmx connects processes of one user only")]
    Permission,
    /// The peer has a job's key, and this process has none.
    #[error(
        "the peer asks for the job's key, and this process has none; set FI_RUSTMX_AUTH_KEY or FI_RUSTMX_AUTH_KEY_FILE for all ranks"
    )]
    KeyMissing,
    /// This process has a job's key, and the peer has none.
    #[error(
        "the peer does not know of a job's key, and this process has one; set FI_RUSTMX_AUTH_KEY or FI_RUSTMX_AUTH_KEY_FILE for all ranks"
    )]
    KeyUnknown,
    /// Both have a key, and not the same.
    #[error("the peer has another job's key; FI_RUSTMX_AUTH_KEY or FI_RUSTMX_AUTH_KEY_FILE must give all ranks the same")]
    KeyDiffers,
    /// One of the two encrypts.
    #[error("one of the two encrypts and the other does not; FI_RUSTMX_ENCRYPT must be the same for all ranks")]
    EncryptionDiffers,
    /// What came is not what was sent.
    #[error("what the peer sent was altered on the way; it was disconnected")]
    Altered,
    /// The kernel left a request to send unanswered: nobody knows what of it the peer gets. (`sys/uring.rs`)
    #[error(
        "the kernel did not answer a request of io_uring to send, and the connection was given up; FI_RUSTMX_TCP_ZEROCOPY=never does without, please report it"
    )]
    Unanswered,
    /// The peer speaks another version of the protocol.
    #[error("the peer runs an incompatible version of rustmx; install the same version everywhere")]
    Version,
    /// An argument is out of range or makes no sense.
    #[error("invalid argument")]
    Invalid,
    /// The object is not in the state the call needs (not enabled, not bound, closed).
    #[error("the object is not in the state that this call needs (not enabled, or not bound)")]
    BadState,
    /// Nothing reports what an endpoint sends, or what it receives.
    #[error(
        "the endpoint has no completion queue, nor a counter, for one of the directions of its capabilities; bind one with fi_ep_bind, or ask for FI_SEND or FI_RECV alone"
    )]
    NoQueue,
    /// The endpoint resolves no addresses.
    #[error("the endpoint has no address vector; bind one with fi_ep_bind")]
    NoAddresses,
    /// The address is already used by another process.
    #[error("another process already listens at this service; choose another port")]
    AddressInUse,
    /// The message is longer than the limit that applies to the call.
    #[error("the message is too long for this call")]
    TooLong,
    /// Out of memory, descriptors or another resource of the machine.
    #[error(
        "out of memory, file descriptors, or ports of FI_RUSTMX_PORT_RANGE; check ulimit -n, the memory limit of the container, and that range"
    )]
    NoResources,
    /// A region is already registered under this key.
    #[error("a region is already registered under this key; close it first")]
    KeyInUse,
    /// The target has no region with this key.
    #[error("the target has no memory region with this key (not registered yet, or closed)")]
    NoKey,
    /// The region does not grant this access to peers.
    #[error("the memory region does not allow this access; register it with FI_REMOTE_READ or FI_REMOTE_WRITE")]
    NoRight,
    /// The request reaches past the region.
    #[error("the request reaches past the end of the memory region")]
    OutOfBounds,
    /// The target's memory is not mapped.
    #[error("memory of the region is not mapped in the target any more")]
    Unmapped,
    /// The object is still used by another one.
    #[error("the object is still in use")]
    Busy,
    /// This process is a fork of the one that opened the provider.
    #[error("rustmx is inert in a forked child; only the process that opened it may communicate")]
    Forked,
    /// No process of this user has a shared address vector of this name open.
    #[error("no process of this user on this host has a shared address vector of this name open")]
    NoVector,
    /// The shared address vector was made by another opener.
    #[error("a shared address vector can be changed only through the handle that created it")]
    ReadOnly,
    /// Not offered.
    #[error("not supported")]
    Unsupported,
}

impl Error {
    /// Whether two processes cannot talk because they were set up differently: by key, encryption, or version.
    pub fn is_of_setup(self) -> bool {
        use Error::{EncryptionDiffers, KeyDiffers, KeyMissing, KeyUnknown, Version};
        matches!(self, KeyMissing | KeyUnknown | KeyDiffers | EncryptionDiffers | Version)
    }
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, Error>;
