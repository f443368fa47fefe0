//! HTTP over TCP as clients see it: good ones, slow ones and hostile ones.

mod bounds;
mod floods;
mod http1;
mod http2;
mod lifetime;
mod stage;
mod turns;
mod unread;
mod world;
