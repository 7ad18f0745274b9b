//! Recycled buffers for the payload of unexpected messages, so that a steady stream of them does not allocate.

/// Buffers kept for reuse, and the largest one worth keeping.
const KEEP: usize = 64;
const KEEP_BYTES: usize = 8 << 10;

/// A small stack of empty buffers.
#[derive(Default)]
pub struct Pool {
    spare: Vec<Vec<u8>>,
}

impl Pool {
    /// An empty buffer.
    pub fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < KEEP && buffer.capacity() <= KEEP_BYTES && buffer.capacity() > 0 {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}
