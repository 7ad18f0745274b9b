mod common;
use common::*;
use rustmx::*;

#[test]
fn gone_before_accept() {
    let mut b = Node::new();
    let mut into = [0u8; 64];
    b.recv(Want::any(), &mut into).unwrap();
    {
        let mut a = Node::new();
        let to = a.knows(&b);
        let mut buf = pattern(64, 1);
        a.send(Msg::new(to, 5), &mut buf).unwrap();
    }
    let got = run(&mut [&mut b], &[1]);
    println!("{got:?}");
    assert_eq!(got[0][0].as_ref().unwrap().tag, 5);
}

#[test]
fn ack_starvation() {
    let (mut a, mut b, mut c) = (Node::new(), Node::new(), Node::new());
    let (to_b, to_a) = (a.knows(&b), c.knows(&a));
    let mut x = [0u8; 8];
    let mut buf = [1u8; 8];
    a.send(Msg::new(to_b, 5).with(OpFlags::DELIVERY_COMPLETE), &mut buf).unwrap();
    let until = Deadline::new(3);
    loop {
        c.send(Msg::new(to_a, 1).inject(), &mut x).ok();
        c.domain.progress();
        b.domain.progress();
        if !a.poll().is_empty() {
            break;
        }
        until.check(|| format!("{:?}", b.stats()));
    }
}

#[test]
fn window_zero() {
    let cfg = Config { eager_window: 0, ..Config::default() };
    let (mut a, mut b) = (Node::with(cfg.clone(), attr()), Node::with(cfg, attr()));
    let to_b = a.knows(&b);
    let mut buf = pattern(60000, 3);
    for i in 0..50 {
        push(&mut a, &mut b, Msg::new(to_b, i), &mut buf[..(i as usize + 1) * 1000]);
    }
    for i in 0..50 {
        let mut into = vec![0u8; 60000];
        b.recv(Want::tag(i), &mut into).unwrap();
        let until = Deadline::new(5);
        loop {
            a.poll();
            let g = b.poll();
            if !g.is_empty() {
                assert_eq!(g[0].as_ref().unwrap().len, (i as usize + 1) * 1000);
                break;
            }
            until.check(|| format!("{i} {:?} {:?}", a.stats(), b.stats()));
        }
    }
}
