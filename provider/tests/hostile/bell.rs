//! Scribbling on the bell.

use crate::common::{Deadline, Msg, Node, Rng, Want, pattern, watchdog};
use crate::liar::Liar;
use crate::scene::{SEND, Scene};
use crate::seed;
use rustmx::{Addr, Config};

/// The bell is everybody's: whatever is written there, messages of cold peers come.
#[test]
fn scribbling_on_the_bell() {
    let _dog = watchdog("bell", 60);
    let mut rng = Rng(seed());
    for mode in 0..3 {
        let mut scene = Scene::with(Config { hot_peers: 1, ..Config::default() });
        let liar = Liar::connected(&mut scene.victim);
        let bell = liar.bell.as_ref().expect("settled");
        let mut peers: Vec<(Node, Addr)> = (0..20)
            .map(|_| {
                let n = Node::new();
                let to = n.knows(&scene.victim);
                (n, to)
            })
            .collect();
        let mut into = vec![0u8; 3000];
        for i in 0..400usize {
            let at = i % 20;
            let (peer, to) = &mut peers[at];
            let mut out = pattern([8, 3000][i % 2], i);
            scene.victim.recv(Want::tag(70).ctx(SEND), &mut into).expect("recv");
            scene.sends_open += 1;
            peer.send(Msg::new(*to, 70).inject().ctx(0), &mut out[..8]).expect("send");
            // Someone clears it all, someone sets it all, someone writes noise.
            match mode {
                0 => bell.take(|_| {}),
                1 => (0..4096).for_each(|slot| bell.ring(slot)),
                _ => (0..20).for_each(|_| bell.ring(rng.next() as u32)),
            }
            let until = Deadline::new(5);
            while scene.sends_open > 0 {
                if mode == 0 {
                    bell.take(|_| {});
                }
                scene.turns(1);
                peers.iter_mut().for_each(|(p, _)| p.domain.progress());
                until.check(|| format!("message {i} is stuck, mode {mode}"));
            }
            assert_eq!(into[..8], out[..8]);
        }
        scene.exchange();
    }
}
