//! Reads the frames of a connection between two ranks of a group, for [`crate::untrusted`].

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Arc;

use super::TensorMemory;
use super::frame::{Kind, TensorCall, TensorHeader};
use super::link::{Event, Link};
use super::reduction::ElementType;
use super::windows::WindowTable;

/// The number of the window that there is.
const WINDOW: u64 = 7;
/// Bytes of the tensors.
const TENSOR_BYTES: usize = 64;

/// Takes all that comes over `stream`, at a rank that receives two tensors and has one window.
pub(crate) fn take_frames(stream: TcpStream) {
    let mut tensors = [[0u8; TENSOR_BYTES]; 2];
    let windows = Arc::new(WindowTable::default());
    let put = BTreeMap::from([(1, vec![0; TENSOR_BYTES])]);
    windows
        .create(WINDOW, ElementType::F32, vec![0; TENSOR_BYTES], put)
        .expect("single precision can be added");
    if stream.set_nonblocking(true).is_err() {
        return;
    }
    let mut link = Link::new(stream, Arc::clone(&windows));
    for (ticket, tensor) in tensors.iter_mut().enumerate() {
        // SAFETY: the tensors outlive the connection, and nobody else uses them until it is dropped.
        let memory = unsafe { TensorMemory::new(tensor.as_mut_ptr() as usize, TENSOR_BYTES) };
        link.receive(TensorCall::Send, ticket as u64, memory, ticket as u64);
    }
    while !link.is_lost() {
        let mut events = Vec::new();
        link.read(&mut events);
        let is_over = events.is_empty();
        for event in events {
            if let Event::Window { header: TensorHeader { kind, key, .. }, bytes } = event {
                let _ = windows.receive(key, 1, &bytes, kind == Kind::Accumulate);
            }
        }
        if is_over {
            break;
        }
    }
    drop(link);
}

/// The frames of every kind, one after the other.
pub(crate) fn example_frames() -> Vec<Vec<u8>> {
    let header = |kind, call, key, bytes: usize| {
        let header = TensorHeader { kind, call, number: 3, key, bytes: bytes as u64 };
        let mut frame = header.encode().to_vec();
        let has_body = !matches!(kind, Kind::Ready | Kind::Offer | Kind::Leave | Kind::Get);
        frame.resize(frame.len() + if has_body { bytes } else { 0 }, 1);
        frame
    };
    let frames = vec![
        header(Kind::Ready, TensorCall::AllReduce, 5, TENSOR_BYTES),
        header(Kind::Data, TensorCall::Send, 0, TENSOR_BYTES),
        header(Kind::Data, TensorCall::Send, 1, TENSOR_BYTES),
        header(Kind::Offer, TensorCall::Send, 4, 0),
        header(Kind::Put, TensorCall::Window, WINDOW, TENSOR_BYTES),
        header(Kind::Accumulate, TensorCall::Window, WINDOW, TENSOR_BYTES),
        header(Kind::Get, TensorCall::Window, WINDOW, 0),
        header(Kind::Answer, TensorCall::Window, WINDOW, 0),
        header(Kind::Answer, TensorCall::Window, WINDOW, TENSOR_BYTES),
        header(Kind::Failed, TensorCall::Window, 0, 5),
        header(Kind::Leave, TensorCall::Window, 0, 0),
    ];
    let all = frames.concat();
    frames.into_iter().chain([all]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    /// What a link makes of these bytes.
    fn events(bytes: &[u8]) -> (Vec<Event>, Option<String>) {
        let windows = Arc::new(WindowTable::default());
        let put = BTreeMap::from([(1, vec![0; TENSOR_BYTES])]);
        windows.create(WINDOW, ElementType::F32, vec![0; TENSOR_BYTES], put).expect("a window");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut near =
            TcpStream::connect(listener.local_addr().expect("its own")).expect("it listens");
        let (far, _) = listener.accept().expect("somebody connects");
        near.write_all(bytes).expect("the socket takes them");
        near.shutdown(std::net::Shutdown::Write).expect("open until now");
        let (mut link, mut events) = (Link::new(far, windows), Vec::new());
        while !link.is_lost() {
            link.read(&mut events);
        }
        (events, link.ended().map(String::from))
    }

    fn header(kind: Kind, key: u64, bytes: u64) -> Vec<u8> {
        TensorHeader { kind, call: TensorCall::Window, number: 3, key, bytes }.encode().to_vec()
    }

    #[test]
    fn a_request_that_does_not_fit_the_window_is_refused_before_there_is_memory_for_it() {
        for kind in [Kind::Put, Kind::Accumulate, Kind::Answer] {
            let (seen, _) = events(&header(kind, WINDOW, u64::MAX));
            let [Event::WindowRefused(told)] = &seen[..] else { panic!("{seen:?}") };
            assert!(told.contains("the window has 64 bytes"), "{told}");
            let (seen, _) = events(&header(kind, 99, 1 << 40));
            let [Event::WindowRefused(told)] = &seen[..] else { panic!("{seen:?}") };
            assert!(told.contains("the window was freed"), "{told}");
        }
        let (_, ended) = events(&header(Kind::Get, WINDOW, 1 << 40));
        assert!(ended.is_some_and(|why| why.contains("it sent a request of 1099511627776 bytes")));
    }

    #[test]
    fn a_peer_that_announces_calls_without_end_is_given_up() {
        let many: Vec<u8> = (0..70_000).flat_map(|key| header(Kind::Ready, key, 8)).collect();
        // More than a socket holds: written by a thread of its own.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its own");
        let writer = std::thread::spawn(move || {
            let mut near = TcpStream::connect(address).expect("it listens");
            // It is closed by the other side before all is written.
            let _ = near.write_all(&many);
        });
        let (far, _) = listener.accept().expect("somebody connects");
        let (mut link, mut events) = (Link::new(far, Arc::default()), Vec::new());
        while !link.is_lost() {
            link.read(&mut events);
        }
        assert_eq!(link.ended(), Some("it is more than 65536 calls ahead"));
        drop(link);
        writer.join().expect("it does not panic");
    }
}
