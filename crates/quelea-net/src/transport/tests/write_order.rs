//! Frames of a later step wait for those of earlier ones, over all links of a rank.

use std::io::Read;
use std::rc::Rc;

use super::*;
use crate::transport::tcp::TcpBytes;

/// A link of a rank with this order, and the end of it that reads.
trait Pair: ByteStream + Sized {
    type Far: Read + Send + 'static;

    fn link(order: &Rc<WriteOrder>) -> (Rc<StreamLink<Self>>, Self::Far);
    fn set_nonblocking(far: &Self::Far, nonblocking: bool);
}

const ROUTE: Route = Route { from: Rank(0), to: Rank(1) };

impl Pair for TcpBytes {
    type Far = TcpStream;

    fn link(order: &Rc<WriteOrder>) -> (Rc<StreamLink<TcpBytes>>, TcpStream) {
        let (near, far) = tcp_pair();
        far.set_read_timeout(Some(PATIENCE)).expect("a socket can");
        let near = TcpBytes::new(near).expect("in a runtime");
        (StreamLink::new(ROUTE, near, order, UNLIMITED), far)
    }

    fn set_nonblocking(far: &TcpStream, nonblocking: bool) {
        far.set_nonblocking(nonblocking).expect("a socket can");
    }
}

impl Pair for UnixBytes {
    type Far = UnixStream;

    fn link(order: &Rc<WriteOrder>) -> (Rc<StreamLink<UnixBytes>>, UnixStream) {
        let (near, far) = UnixStream::pair().expect("a pair");
        far.set_read_timeout(Some(PATIENCE)).expect("a socket can");
        (StreamLink::new(ROUTE, UnixBytes::new(near), order, UNLIMITED), far)
    }

    fn set_nonblocking(far: &UnixStream, nonblocking: bool) {
        far.set_nonblocking(nonblocking).expect("a socket can");
    }
}

/// Sends a vector of so many elements; how many bytes that is.
async fn send<S: ByteStream>(link: &StreamLink<S>, step: u64, len: usize) -> usize {
    // A new socket says that it has room only after the runtime has looked.
    link.is_writable().await;
    let message = Message::new(1, step, 0).with(Pool::default().take(len));
    let bytes = quelea_wire::frame::frame_bytes(&message) as usize;
    link.push(0, message);
    link.flush().expect("it is open");
    bytes
}

fn is_silent<P: Pair>(far: &mut P::Far) -> bool {
    P::set_nonblocking(far, true);
    let read = far.read(&mut [0]);
    P::set_nonblocking(far, false);
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// More than a kernel holds of one connection.
const LARGE: usize = 16 << 20;

async fn a_later_step_waits<P: Pair>() {
    let order = WriteOrder::new(true);
    let (first, mut first_far) = P::link(&order);
    let (second, mut second_far) = P::link(&order);
    let large = send(&first, 4, LARGE).await;
    let small = send(&second, 5, 3).await;
    assert!(is_silent::<P>(&mut second_far), "step 4 is not written");
    // An earlier step may always be written; on the same link it comes after what was before it.
    let (third, mut third_far) = P::link(&order);
    let early = send(&third, 3, 3).await;
    third_far.read_exact(&mut vec![0; early]).expect("it was written");
    send(&second, 2, 3).await;
    assert!(is_silent::<P>(&mut second_far));
    let reading = std::thread::spawn(move || {
        first_far.read_exact(&mut vec![0; large]).expect("it is written by and by");
        second_far.read_exact(&mut vec![0; 2 * small]).expect("then this");
    });
    let ended = tokio::task::spawn_blocking(|| reading.join());
    tokio::select! {
        error = first.write_rest() => panic!("{error}"),
        joined = ended => joined.expect("it ran").expect("it read"),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_later_step_waits_until_earlier_ones_are_written_to_all() {
    a_later_step_waits::<TcpBytes>().await;
    a_later_step_waits::<UnixBytes>().await;
}

async fn nobody_waits<P: Pair>() {
    let order = WriteOrder::new(false);
    let (first, _first_far) = P::link(&order);
    let (second, mut second_far) = P::link(&order);
    send(&first, 4, LARGE).await;
    let small = send(&second, 5, 3).await;
    second_far.read_exact(&mut vec![0; small]).expect("it was written");
}

#[tokio::test(flavor = "current_thread")]
async fn without_an_order_nobody_waits() {
    nobody_waits::<TcpBytes>().await;
    nobody_waits::<UnixBytes>().await;
}
