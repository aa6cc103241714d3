//! A link continues over a new stream where the old one broke.

use std::io::Read;
use std::net::Shutdown;
use std::sync::Arc;

use super::*;

/// More than a socket of the Unix domain holds, so that nothing is lost unseen.
const KEPT: usize = 8 << 20;

fn link(from: u32, stream: UnixStream, kept_bytes: usize) -> Rc<StreamLink<UnixBytes>> {
    let route = Route { from: Rank(from), to: Rank(1 - from) };
    let order = WriteOrder::new(true);
    StreamLink::new(route, UnixBytes::new(stream), &order, SendBudget { kept_bytes, ..UNLIMITED })
}

fn receiving(own: u32) -> Receiving {
    Receiving { limits: limits(Rank(1 - own), Rank(own), LEN, true), pool: Pool::new() }
}

/// Passes bytes on until so many have come from one side, then closes both connections.
fn breaking_after(bytes: u64, first: UnixStream, second: UnixStream) {
    let (first, second) = (Arc::new(first), Arc::new(second));
    for (from, to) in [(&first, &second), (&second, &first)] {
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        std::thread::spawn(move || {
            let _ = io::copy(&mut (&*from).take(bytes), &mut &*to);
            for stream in [from, to] {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }
}

fn pairs() -> [UnixStream; 4] {
    let (first, first_far) = UnixStream::pair().expect("a pair");
    let (second, second_far) = UnixStream::pair().expect("a pair");
    [first, first_far, second, second_far]
}

/// Moves all messages in both directions over connections that break again and again: the first after
/// so many bytes, later ones after as many and a little more than the longest frame.
async fn moves_all_although_it_breaks(first_bytes: u64) {
    let mut rng = Rng::new(5, "breaks", first_bytes);
    let sent: Vec<Message> = (0..40).map(|step| drawn(&mut rng, step)).collect();
    let [first, first_far, second, second_far] = pairs();
    breaking_after(first_bytes, first_far, second_far);
    let ends = [link(0, first, KEPT), link(1, second, KEPT)];
    let sinks = [Collector::default(), Collector::default()];
    let mut breaks = 0;
    for message in &sent {
        for end in &ends {
            end.push(0, message.clone());
            // Whether it breaks is seen below.
            let _ = end.flush();
        }
    }
    let is_done = |sink: &Collector| sink.frames.borrow().len() >= sent.len();
    loop {
        let (here, there) = (receiving(0), receiving(1));
        let done = async {
            sinks[0].until(is_done).await;
            sinks[1].until(is_done).await;
        };
        tokio::select! {
            () = done => break,
            error = ends[0].run(&here, &sinks[0]) => assert!(error.is_disconnection(), "{error}"),
            error = ends[1].run(&there, &sinks[1]) => assert!(error.is_disconnection(), "{error}"),
        }
        breaks += 1;
        let [first, first_far, second, second_far] = pairs();
        breaking_after(first_bytes + 5_000_000, first_far, second_far);
        let received = [ends[0].received(), ends[1].received()];
        ends[0].resume(UnixBytes::new(first), received[1]).expect("all is kept");
        ends[1].resume(UnixBytes::new(second), received[0]).expect("all is kept");
    }
    assert!(breaks > 0, "it never broke");
    for sink in &sinks {
        let got = sink.frames.borrow();
        assert_eq!(got.len(), sent.len(), "after {breaks} breaks");
        for (number, (got, expected)) in got.iter().zip(&sent).enumerate() {
            assert_eq!(bytes(&got.2), bytes(expected), "message {number} after {breaks} breaks");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_link_that_breaks_anywhere_loses_and_doubles_nothing() {
    // Within a header, at the end of one, within a vector, after several frames.
    for bytes in [1, 79, 80, 30_000, 1 << 20, 9 << 20] {
        moves_all_although_it_breaks(bytes).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn frames_that_are_no_longer_kept_cannot_be_resumed() {
    let [first, mut first_far, second, _second_far] = pairs();
    let end = link(0, first, 1_000);
    for step in 0..4 {
        end.is_writable().await;
        end.push(0, Message::new(1, step, 0).with(Pool::new().copy(&[1.0; 250])));
        end.flush().expect("it is open");
    }
    first_far.read_exact(&mut [0; 4 * 1_080]).expect("all was written");
    // The last 1,000 bytes are within the last frame.
    let told = end.resume(UnixBytes::new(second), 2).expect_err("one is missing");
    assert_eq!(told, "2 frames are missing, of which 1 are kept");
    let [third, ..] = pairs();
    end.resume(UnixBytes::new(third), 3).expect("the last one is kept");
    let [fourth, ..] = pairs();
    let told = end.resume(UnixBytes::new(fourth), 9).expect_err("there are not so many");
    assert_eq!(told, "it has received 9 frames of 3");
}
