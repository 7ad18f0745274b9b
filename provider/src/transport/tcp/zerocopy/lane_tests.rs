//! A lane that lends: its pieces have left when the kernel is through with them, and whoever lets go of it has the memory back.

use super::super::Office;
use super::super::connection::Connection;
use super::tests::{AFTER, BEFORE, FORCED, Limit, is_off, narrow, prime, read, registered};
use super::*;
use crate::mem::user::UserSeg;
use crate::transport::Bulk;
use crate::wire::hello::HELLO_LEN;

const LEN: usize = 12 << 20;

/// A lane towards a plain socket, which has read its hello. `None`: nothing can be lent here.
fn lane(wanted: network::ZeroCopy, memory: &mut [u8]) -> Option<(Connection, OwnedFd)> {
    let [a, b] = narrow();
    let office = Arc::new(Office::new(10_000, wanted).expect("poller"));
    let carrier = Connection::new(a, 0, office, None);
    carrier.greet_lane(7);
    let (mut hello, limit) = ([0; HELLO_LEN], Limit::new());
    while tcp::recv_bytes(&b, &mut hello) != Ok(HELLO_LEN) {
        limit.check();
    }
    let lends = {
        let outgoing = &mut carrier.halves.lock().outgoing;
        prime(outgoing, carrier.stream(), &b, memory);
        !is_off(outgoing)
    };
    lends.then_some((carrier, b))
}

#[expect(unsafe_code, reason = "buffers of the tests as the application's")]
fn post(carrier: &Connection, id: u32, memory: &mut [u8]) {
    // SAFETY: the tests keep the memory until the kernel is through with it, or see to it that it lets go.
    let seg = unsafe { UserSeg::new(memory.as_mut_ptr(), memory.len()) };
    carrier.post_piece(Bulk { id, iov: &[seg], skip: 0, len: memory.len(), promised: 0 });
}

fn waits(carrier: &Connection) -> bool {
    carrier.halves.lock().outgoing.zerocopy.waits()
}

#[test]
fn pieces_have_left_when_the_kernel_is_through_with_them() {
    for wanted in FORCED {
        let mut memory = vec![BEFORE; LEN];
        let Some((carrier, b)) = lane(wanted, &mut memory) else { return };
        let before = registered(&carrier.halves.lock().outgoing);
        post(&carrier, 3, &mut memory);
        let mut left = VecDeque::new();
        // Who ends here in good order has not had all.
        assert!(waits(&carrier) && !carrier.settle(&mut left) && left.is_empty());
        let (mut got, mut late, mut pieces, limit) = (0, 0, Vec::new(), Limit::new());
        while got < LEN || pieces.is_empty() {
            limit.check();
            assert_eq!(read(&b, &mut got, &mut late), Err(Errno::AGAIN));
            carrier.flush();
            carrier.hear_notices();
            carrier.take_pieces(&mut pieces).expect("it carries");
            if !pieces.is_empty() {
                memory.fill(AFTER);
            }
        }
        assert!(pieces == [3] && late == 0, "{pieces:?}, {late} places");
        assert!(carrier.settle(&mut left) && left.is_empty() && !waits(&carrier));
        assert!(
            before.is_none() || registered(&carrier.halves.lock().outgoing) > before,
            "nothing left out of registered buffers"
        );
    }
}

/// What had left and nobody has taken yet is not lost with a lane that ends in good order.
#[test]
fn what_has_left_is_known_after_the_end() {
    let mut memory = vec![BEFORE; LEN];
    let Some((carrier, b)) = lane(network::ZeroCopy::Always, &mut memory) else { return };
    post(&carrier, 4, &mut memory);
    let (mut got, mut left, limit) = (0, VecDeque::new(), Limit::new());
    while !carrier.settle(&mut left) {
        limit.check();
        let _ = read(&b, &mut got, &mut 0);
        carrier.flush();
    }
    assert_eq!(left, [4]);
}

#[test]
fn who_lets_go_of_it_has_the_memory_back() {
    for (wanted, first_all) in FORCED.into_iter().flat_map(|wanted| [(wanted, false), (wanted, true)]) {
        let mut memory = vec![BEFORE; LEN];
        let Some((carrier, b)) = lane(wanted, &mut memory) else { return };
        post(&carrier, 3, &mut memory);
        assert!(waits(&carrier));
        if first_all {
            carrier.break_off();
        }
        carrier.let_go(&Clock::machine());
        memory.fill(AFTER);
        let (mut got, mut late, limit) = (0, 0, Limit::new());
        let end = loop {
            limit.check();
            match read(&b, &mut got, &mut late) {
                Err(Errno::AGAIN) => {}
                end => break end,
            }
        };
        assert!(late == 0 && got < LEN, "{late} places of {got} bytes");
        assert!(end == Err(Errno::CONNRESET) || end == Ok(()), "{end:?}");
    }
}
