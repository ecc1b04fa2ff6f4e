import type { NextConfig } from 'next'

const config: NextConfig = {
  // A preview has a host name of its own, which is not known here.
  allowedDevOrigins: ['**.*'],
}

export default config
