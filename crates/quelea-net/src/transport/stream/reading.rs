//! The receiving side: frames as they come.

use std::io;
use std::rc::Rc;

use quelea_wire::decoder::Decoder;

use super::{ByteStream, FrameSink, LinkError, Receiving, StreamLink};

/// A vector with more than this missing is read into directly.
const DIRECT_BYTES: usize = 16 << 10;
/// What is read at once otherwise.
const BUFFER_BYTES: usize = 64 << 10;

impl<S: ByteStream> StreamLink<S> {
    /// Reads frames and hands each to `sink`, which may refuse it; ends only with an error.
    pub(super) async fn read_frames(
        &self,
        receiving: &Receiving,
        sink: &dyn FrameSink,
    ) -> LinkError {
        let stream = Rc::clone(&self.stream.borrow());
        let mut decoder = Decoder::new(receiving.limits, receiving.pool.clone());
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let missing = decoder.spare().len();
            stream.expect_bytes(if missing < DIRECT_BYTES { 0 } else { missing });
            match self.read_some(&*stream, &mut decoder, &mut buffer, sink).await {
                Ok(()) => {}
                Err(error) => return error,
            }
        }
    }

    /// Reads once: the rest of a long vector directly, anything else through `buffer`.
    async fn read_some(
        &self,
        stream: &S,
        decoder: &mut Decoder,
        buffer: &mut [u8],
        sink: &dyn FrameSink,
    ) -> Result<(), LinkError> {
        let spare = decoder.spare();
        let direct = spare.len() >= DIRECT_BYTES;
        let target = if direct { spare } else { &mut *buffer };
        let count = loop {
            stream.readable().await?;
            match stream.try_read(target) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        let mut bytes = &buffer[..if direct { 0 } else { count }];
        if direct {
            decoder.advance(count);
        }
        while let Some((header, message)) = decoder.take(&mut bytes)? {
            self.received.set(self.received.get() + 1);
            let taken = sink.frame(header.route.from, header.sent_micros, message);
            taken.map_err(LinkError::Refused)?;
        }
        Ok(())
    }
}
